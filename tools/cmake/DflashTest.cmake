# dflash_test(NAME n SOURCES ... [LINK ...] [LABELS ...] [TIMEOUT s] [TORCH_PCH])
#
# A doctest program dflash_<n>_test, run by CTest once as a whole from the project's root, so that test/golden/ is
# found. LABELS default to cpu. Programs of label gpu return 77 where there is no device, which CTest reports
# as skipped. main() is test/main.cpp, or test/gpu/gpu_main.cpp, unless SOURCES have one.
find_package(doctest REQUIRED)

# Assertions are most of what tests are made of, and take the compiler three times as long to optimise for sanitizers
# as to translate. What is tested is compiled as ever.
if(DFLASH_SANITIZE)
  set(DFLASH_TEST_OPTIONS -O0)
else()
  set(DFLASH_TEST_OPTIONS -O1)
endif()

function(dflash_test)
  cmake_parse_arguments(T "TORCH_PCH" "NAME;TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  set(target dflash_${T_NAME}_test)
  add_executable(${target} ${T_SOURCES})
  if("gpu" IN_LIST T_LABELS)
    set(main dflash_gpu_test_main)
  else()
    set(main dflash_test_main)
  endif()
  target_link_libraries(${target} PRIVATE ${main} ${T_LINK} doctest::doctest dflash::warnings)
  if(T_TORCH_PCH)  # which is made with the options of the modules
    target_precompile_headers(${target} REUSE_FROM dflash_torch_pch)
  else()
    target_compile_options(${target} PRIVATE ${DFLASH_TEST_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM dflash_test_pch)
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
