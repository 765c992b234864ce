int does_not_compile() {
  return this_name_is_declared_nowhere;
}
