#include "shm.h"

#include "../shm_comm/process.cpp"
#include "../shm_comm/reduce.cpp"
#include "../shm_comm/segment.cpp"
#include "../shm_comm/shm_comm.cpp"
