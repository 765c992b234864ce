// A row of a mask, for the code path DS_ISA: the compiler makes gathers of it where there are some.

namespace ds::DS_ISA {
namespace {

// All indices are tokens.
template <class T>
DS_TARGET void take(const void* from, const std::int32_t* indices, std::int64_t size, void* to) {
  const T* row = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (std::int64_t i = 0; i < size; ++i) out[i] = row[indices[i]];
}

inline TakeKernel take_kernel(int element_size) {
  return element_size == 1   ? take<std::uint8_t>
         : element_size == 2 ? take<std::uint16_t>
         : element_size == 4 ? take<std::uint32_t>
                             : take<std::uint64_t>;
}

}  // namespace
}  // namespace ds::DS_ISA
