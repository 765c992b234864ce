# The level of x86-64 that all code of this build needs: of what the compiler is told by CXXFLAGS.
# What the ops choose at run time does not count.
#
# Sets
#   DS_ISA_LEVEL         1 to 4 as the psABI has them; 0 on other architectures
#   DS_LINKER_MARKS_ISA  TRUE if the linker can write the level into a library

set(DS_ISA_LEVEL 0)
set(DS_LINKER_MARKS_ISA FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  separate_arguments(_ds_flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" ${_ds_flags} -dM -E -x c++ /dev/null
    OUTPUT_VARIABLE _ds_macros ERROR_QUIET)
  set(DS_ISA_LEVEL 1)
  # One instruction of a level that is not in the levels below makes it that level.
  if(_ds_macros MATCHES "__AVX512[A-Z0-9_]+__ ")
    set(DS_ISA_LEVEL 4)
  elseif(_ds_macros MATCHES "__(AVX|AVX2|BMI|BMI2|F16C|FMA|LZCNT|MOVBE)__ ")
    set(DS_ISA_LEVEL 3)
  elseif(_ds_macros MATCHES "__(SSE3|SSSE3|SSE4_1|SSE4_2|POPCNT)__ ")
    set(DS_ISA_LEVEL 2)
  endif()
  if(DS_ISA_LEVEL GREATER 1)
    include(CheckLinkerFlag)
    check_linker_flag(CXX "LINKER:-z,x86-64-v${DS_ISA_LEVEL}" DS_LINKER_HAS_ISA_${DS_ISA_LEVEL})
    set(DS_LINKER_MARKS_ISA ${DS_LINKER_HAS_ISA_${DS_ISA_LEVEL}})
    message(STATUS "all code needs x86-64-v${DS_ISA_LEVEL}")
  endif()
endif()
