# dflash::warnings: the warnings and sanitizers of our own targets; linked PRIVATE, so never passed on.
add_library(dflash_warnings INTERFACE)
add_library(dflash::warnings ALIAS dflash_warnings)
target_compile_options(dflash_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
  -Wold-style-cast -Woverloaded-virtual
  # g++ 12 reports false overlaps and overruns inside std::string; the address sanitizer sees true ones.
  -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
  $<$<BOOL:${DFLASH_WERROR}>:-Werror>)
if(DFLASH_SANITIZE)
  add_compile_options(-fsanitize=${DFLASH_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DFLASH_SANITIZE})
endif()
