# The CUDA language, where it is asked for (DS_CUDA) and nvcc is there. Included at file scope:
# enable_language() counts only there.
#
# Sets
#   DS_CUDA_FOUND    TRUE or FALSE
#   DS_CUDA_WHY_NOT  if not: what is missing
#   CMAKE_CUDA_ARCHITECTURES  from DS_CUDA_ARCHITECTURES: machine code for each, PTX of the last
#
# The runtime is linked statically: a node needs the driver alone, and an op built with one toolkit
# loads beside a torch that brought another.

set(DS_CUDA_FOUND FALSE)
set(DS_CUDA_WHY_NOT "DS_CUDA is off")
if(DS_CUDA)
  find_program(DS_NVCC nvcc
    HINTS "$ENV{CUDACXX}" ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
    DOC "CUDA's compiler")
  if(CMAKE_CUDA_COMPILER)
    set(_ds_nvcc "${CMAKE_CUDA_COMPILER}")
  elseif(EXISTS "$ENV{CUDACXX}")
    set(_ds_nvcc "$ENV{CUDACXX}")
  else()
    set(_ds_nvcc "${DS_NVCC}")
  endif()
  if(NOT _ds_nvcc)
    set(DS_CUDA_WHY_NOT "nvcc is not on the PATH, in CUDA_HOME or in /usr/local/cuda")
  else()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "")
      set(_ds_rest ${DS_CUDA_ARCHITECTURES})
      list(POP_BACK _ds_rest _ds_last)
      foreach(_ds_arch IN LISTS _ds_rest)
        list(APPEND CMAKE_CUDA_ARCHITECTURES "${_ds_arch}-real")
      endforeach()
      list(APPEND CMAKE_CUDA_ARCHITECTURES "${_ds_last}")
    endif()
    set(CMAKE_CUDA_COMPILER "${_ds_nvcc}")
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA_STANDARD)
      set(CMAKE_CUDA_STANDARD 17)
    endif()
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    find_package(CUDAToolkit REQUIRED)
    set(DS_CUDA_FOUND TRUE)
    set(DS_CUDA_WHY_NOT "")
    message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
endif()
