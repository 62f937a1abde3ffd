# dflash_test(NAME n SOURCES ... [LINK ...] [LABELS ...] [TIMEOUT s] [TORCH_PCH])
#
# A doctest program dflash_<n>_test, run by CTest once as a whole from the project's root, so that test/golden/ is
# found. LABELS default to cpu. Programs of label gpu return 77 where there is no device, which CTest reports
# as skipped.
find_package(doctest REQUIRED)

function(dflash_test)
  cmake_parse_arguments(T "TORCH_PCH" "NAME;TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  set(target dflash_${T_NAME}_test)
  add_executable(${target} ${T_SOURCES})
  target_link_libraries(${target} PRIVATE ${T_LINK} doctest::doctest dflash::warnings)
  if(T_TORCH_PCH)
    target_precompile_headers(${target} REUSE_FROM dflash_torch_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM dflash_std_pch)
  endif()
  if(NOT T_LABELS)
    set(T_LABELS cpu)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  add_test(NAME ${T_NAME} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
