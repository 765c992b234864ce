# ds_write_capabilities(<folder> <rows>): the two headers that common/capabilities.h includes. A row
# is "name|capability|library|devices with spaces"; the accelerators are the files in
# common/accelerators, so neither an op nor an accelerator is listed by hand anywhere.

# DS_ACCELERATORS: what op.json may name.
set(_ds_depends CONFIGURE_DEPENDS)
if(CMAKE_SCRIPT_MODE_FILE)
  set(_ds_depends "")  # A script has no build that could be configured again.
endif()
file(GLOB _ds_files ${_ds_depends} "${CMAKE_CURRENT_LIST_DIR}/../common/accelerators/*.h")
set(DS_ACCELERATORS "")
foreach(_ds_file IN LISTS _ds_files)
  get_filename_component(_ds_name "${_ds_file}" NAME_WE)
  list(APPEND DS_ACCELERATORS "${_ds_name}")
endforeach()
list(SORT DS_ACCELERATORS)

function(ds_write_capabilities folder rows)
  set(constants "")
  set(table "")
  foreach(row IN LISTS rows)
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 capability)
    list(GET row 2 library)
    list(GET row 3 devices)
    # async_io: kAsyncIo
    string(REPLACE "_" ";" words "${name}")
    set(constant "k")
    foreach(word IN LISTS words)
      string(SUBSTRING "${word}" 0 1 first)
      string(SUBSTRING "${word}" 1 -1 others)
      string(TOUPPER "${first}" first)
      string(APPEND constant "${first}${others}")
    endforeach()
    string(APPEND constants "inline constexpr char ${constant}[] = \"${capability}\";\n")
    string(APPEND table
      "      {\"${name}\", \"${capability}\", \"${library}\", \"${devices}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/capability_names.h" @ONLY CONTENT
"// Written from every op.json when the ops were configured.
#pragma once

#include <vector>

namespace ds {

namespace capability {
@constants@}  // namespace capability

struct DescribedOp {
  const char* name;
  const char* capability;
  const char* library;  // lib/lib<library>.so
  const char* devices;  // With a space between.
};

inline std::vector<DescribedOp> described_ops() {
  return {
@table@  };
}

}  // namespace ds
")
  set(includes "")
  set(list "")
  foreach(name IN LISTS DS_ACCELERATORS)
    string(APPEND includes "#include \"accelerators/${name}.h\"\n")
    string(APPEND list "accelerators::${name}(), ")
  endforeach()
  string(REGEX REPLACE ", $" "" list "${list}")
  file(CONFIGURE OUTPUT "${folder}/all_accelerators.h" @ONLY CONTENT
"// Written from the files in accelerators/ when the ops were configured.
#pragma once

#include <vector>

@includes@
namespace ds {

inline std::vector<Accelerator> all_accelerators() {
  return {@list@};
}

}  // namespace ds
")
endfunction()
