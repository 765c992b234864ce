#pragma once

// This op is tested from the outside only; it has no C++ interface.
