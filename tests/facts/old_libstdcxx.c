// Defines symbols of the versions that a C++ library of 2014 ends with.
int old_symbol(void);
int old_symbol(void) {
  return 20;
}
int old_abi(void);
int old_abi(void) {
  return 8;
}
int older_symbol(void);
int older_symbol(void) {
  return 9;
}
