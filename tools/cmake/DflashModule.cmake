# dflash_module(NAME n LAYER l SOURCES ... [HEADERS ...] [DEPENDS ...] [LINK ...] [PRIVATE_LINK ...] [TORCH_PCH | PCH ...])
#
# One static library per module, as target dflash_<n> and alias dflash::<n>. A module can include only its
# own headers and those of the modules it names in DEPENDS, because its include root is a private tree of
# links to them: an upward include does not find its file. LAYER is the layer of design and reading order;
# a module depends only on modules of smaller layers, or of its own layer named earlier.
#
#   SOURCES        relative to src/<n>/
#   HEADERS        relative to include/dflash/<n>/; each is also compiled alone by all_verify_interface_header_sets
#   DEPENDS        modules, passed on to dependents
#   LINK           third-party targets whose headers appear in our public headers
#   PRIVATE_LINK   third-party targets that only the sources see
#   TORCH_PCH      a module that sees LibTorch: use its precompiled header instead of the standard library's
#   PCH            headers that the module precompiles for itself, with the standard library's
function(dflash_module)
  cmake_parse_arguments(M "TORCH_PCH" "NAME;LAYER" "SOURCES;HEADERS;DEPENDS;LINK;PRIVATE_LINK;PCH" ${ARGN})
  if(M_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "dflash_module(${M_NAME}): unknown arguments ${M_UNPARSED_ARGUMENTS}")
  endif()
  foreach(dep IN LISTS M_DEPENDS)
    get_property(dep_layer GLOBAL PROPERTY DFLASH_LAYER_${dep})
    if(dep_layer STREQUAL "")
      message(FATAL_ERROR "module ${M_NAME} depends on ${dep}, which is not declared before it in src/CMakeLists.txt")
    elseif(dep_layer GREATER M_LAYER)
      message(FATAL_ERROR "module ${M_NAME} (layer ${M_LAYER}) may not depend on ${dep} (layer ${dep_layer})")
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY DFLASH_LAYER_${M_NAME} ${M_LAYER})

  set(target dflash_${M_NAME})
  set(root ${CMAKE_BINARY_DIR}/include_roots/${M_NAME})
  file(MAKE_DIRECTORY ${root}/dflash)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/dflash/${M_NAME} ${root}/dflash/${M_NAME} SYMBOLIC)
  list(TRANSFORM M_HEADERS PREPEND ${root}/dflash/${M_NAME}/)

  add_library(${target} STATIC ${M_SOURCES})
  add_library(dflash::${M_NAME} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${root} FILES ${M_HEADERS})
  list(TRANSFORM M_DEPENDS PREPEND dflash::)
  target_link_libraries(${target} PUBLIC ${M_DEPENDS} ${M_LINK} PRIVATE ${M_PRIVATE_LINK} dflash::warnings)
  if(M_PCH)
    target_precompile_headers(${target} PRIVATE ${DFLASH_STD_HEADERS} ${M_PCH})
  elseif(NOT M_TORCH_PCH)
    target_precompile_headers(${target} REUSE_FROM dflash_std_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM dflash_torch_pch)
    # Their headers include it, and with it nearly all of the standard library: to compile each alone shows little and
    # takes minutes.
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS OFF)
  endif()
endfunction()
