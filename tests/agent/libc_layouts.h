#pragma once

struct layout {
  const char* name;
  long value;
};
