#pragma once

// shm_comm's interface, for this library alone: it has a core of its own inside, so that ccl_comm
// works without shm_comm, and shows none of it, so that both can be in one program.

#include "ds_op.h"

#undef DS_EXPORT
#define DS_EXPORT
#include "../shm_comm/shm_comm.h"
#undef DS_EXPORT
#define DS_EXPORT __attribute__((visibility("default")))
