# ds_find_torch(<prefix>): torch as an imported target, from a pip package folder, an unzipped
# libtorch or a system prefix. Not find_package(Torch): that turns on the CUDA language and looks
# for a toolkit even to compile for the CPU.
#
# Sets in the caller's scope:
#   DS_TORCH_FOUND      TRUE or FALSE
#   DS_TORCH_WHY_NOT    if not: what is missing, with the path
#   DS_TORCH_VERSION    "1.13.0", "2.11.0"
#   DS_TORCH_CXX11_ABI  1 or 0, read from the library
#   DS_TORCH_ROOT, DS_TORCH_LIB_DIR
#   DS_TORCH_HAS_CUDA   TRUE if it was built with CUDA
# and makes the target ds_torch, and with CUDA ds_torch_cuda: streams and the like.

function(_ds_torch_try prefix)
  set(found FALSE)
  set(why "")
  set(include "${prefix}/include")
  if(NOT EXISTS "${include}/torch/library.h" AND
     NOT EXISTS "${include}/torch/csrc/api/include/torch/types.h")
    set(why "${include}/torch/library.h is not there")
  endif()
  set(lib_dir "")
  foreach(dir IN ITEMS lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}"
                       "lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
    if(NOT lib_dir AND EXISTS "${prefix}/${dir}/libtorch_cpu.so" AND
       EXISTS "${prefix}/${dir}/libc10.so")
      set(lib_dir "${prefix}/${dir}")
    endif()
  endforeach()
  if(NOT why AND NOT lib_dir)
    set(why "libtorch_cpu.so and libc10.so are not in ${prefix}/lib")
  endif()

  set(version "")
  if(NOT why)
    if(EXISTS "${prefix}/version.py")
      file(STRINGS "${prefix}/version.py" line REGEX "^__version__")
      string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" version "${line}")
    endif()
    foreach(header IN ITEMS torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
      if(NOT version AND EXISTS "${include}/${header}")
        file(STRINGS "${include}/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
        string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
               version "${lines}")
      endif()
    endforeach()
    if(NOT version MATCHES "^[0-9]+\\.[0-9]+")
      set(why "the version of the torch in ${prefix} is neither in version.py nor in version.h")
    endif()
  endif()

  if(NOT why)
    set(found TRUE)
    # What the library was compiled with, not what a package says of itself: a wrong guess links
    # and then fails when it is loaded.
    file(STRINGS "${lib_dir}/libc10.so" new_abi LIMIT_COUNT 1
         REGEX "_ZN3c105ErrorC[12]ENS_14SourceLocationENSt7__cxx1112basic_string")
    set(abi 0)
    if(new_abi)
      set(abi 1)
    endif()
    set(DS_TORCH_CXX11_ABI ${abi} PARENT_SCOPE)
  endif()
  set(DS_TORCH_FOUND ${found} PARENT_SCOPE)
  set(DS_TORCH_WHY_NOT "${why}" PARENT_SCOPE)
  set(DS_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(DS_TORCH_ROOT "${prefix}" PARENT_SCOPE)
  set(DS_TORCH_LIB_DIR "${lib_dir}" PARENT_SCOPE)
endfunction()

macro(ds_find_torch prefix)
  set(DS_TORCH_FOUND FALSE)
  if(NOT "${prefix}" STREQUAL "")
    _ds_torch_try("${prefix}")
  else()
    # The torch of the active Python, found without importing it (which takes seconds).
    execute_process(
      COMMAND python3 -c
        "import importlib.util as u; s = u.find_spec('torch'); print(list(s.submodule_search_locations)[0] if s else '')"
      OUTPUT_VARIABLE _ds_python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(DS_TORCH_WHY_NOT "python3 has no torch")
    if(_ds_python_torch)
      _ds_torch_try("${_ds_python_torch}")
    endif()
    # Debian's python3-torch has no headers of its own: libtorch-dev has them, in /usr.
    if(NOT DS_TORCH_FOUND)
      set(_ds_python_why "${DS_TORCH_WHY_NOT}")
      _ds_torch_try("/usr")
      if(NOT DS_TORCH_FOUND)
        string(PREPEND DS_TORCH_WHY_NOT "${_ds_python_why}; ")
      endif()
    endif()
  endif()

  set(DS_TORCH_HAS_CUDA FALSE)
  if(DS_TORCH_FOUND AND EXISTS "${DS_TORCH_LIB_DIR}/libc10_cuda.so")
    set(DS_TORCH_HAS_CUDA TRUE)
  endif()
  if(DS_TORCH_FOUND AND NOT TARGET ds_torch)
    add_library(ds_torch INTERFACE IMPORTED)
    set(_ds_torch_includes "${DS_TORCH_ROOT}/include"
        "${DS_TORCH_ROOT}/include/torch/csrc/api/include")
    # As a system folder named by -isystem, /usr/include would be searched before the compiler's
    # own, and <cstdlib> no longer finds <stdlib.h>.
    list(REMOVE_ITEM _ds_torch_includes ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES} "/usr/include")
    set_target_properties(ds_torch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_ds_torch_includes}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_ds_torch_includes}"
      INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${DS_TORCH_CXX11_ABI}"
      INTERFACE_LINK_LIBRARIES "${DS_TORCH_LIB_DIR}/libtorch_cpu.so;${DS_TORCH_LIB_DIR}/libc10.so")
    if(DS_TORCH_HAS_CUDA)
      add_library(ds_torch_cuda INTERFACE IMPORTED)
      set_target_properties(ds_torch_cuda PROPERTIES
        INTERFACE_LINK_LIBRARIES "ds_torch;${DS_TORCH_LIB_DIR}/libc10_cuda.so")
    endif()
  endif()
endmacro()
