#include "orchestrator/base/nodeset.h"
