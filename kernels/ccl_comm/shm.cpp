#include "shm.h"

// All of it as one file: the sources of an op lie in its folder, and these in another's.
// NOLINTBEGIN(bugprone-suspicious-include)
#include "../shm_comm/process.cpp"
#include "../shm_comm/reduce.cpp"
#include "../shm_comm/segment.cpp"
#include "../shm_comm/shm_comm.cpp"
// NOLINTEND(bugprone-suspicious-include)
