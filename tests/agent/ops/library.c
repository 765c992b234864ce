// What ops link to: a library that no node has, and two versions of one.
__attribute__((visibility("default"))) int ds_absent(void) {
  return 0;
}
__attribute__((visibility("default"))) int ds_versioned(void) {
  return 0;
}
