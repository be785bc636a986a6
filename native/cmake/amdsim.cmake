# libamdsim.so: the calls of HIP over a simulator of AMD's processors (sim/amd/), which runs libtandem_hip.so where no
# card is. Built by name: cmake --build native/build --target amdsim. By the clang that compiles the kernels, whose
# llvm-objdump decodes them; gcc 12 does not take comparisons in lambdas that are template arguments.
set(tools "")
foreach(tool objdump readelf)
  execute_process(COMMAND ${TND_HIP_CLANG} --print-prog-name=llvm-${tool} OUTPUT_VARIABLE path
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  get_filename_component(tools ${path} DIRECTORY)
endforeach()
set(warnings -Wall -Wextra)
if(TND_WERROR)
  list(APPEND warnings -Werror)
endif()
# Half-precision conversions and fused multiply-adds by instructions; headers of /usr are found without being named.
set(options -std=c++20 -O2 -ffp-contract=off -fPIC ${warnings} -D__HIP_PLATFORM_AMD__)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  list(APPEND options -march=x86-64-v3)
endif()
if(NOT rocm STREQUAL /usr)
  list(APPEND options -isystem ${rocm}/include)
endif()
set(objects "")
foreach(name inst wave scalar vector compare matrix memory device hip amdsim_test)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/sim/amd/${name}.cpp)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/amdsim/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/amdsim
    COMMAND ${TND_HIP_CLANG} ${options} "-DTND_AMDSIM_LLVM=\"${tools}\"" -I${CMAKE_CURRENT_SOURCE_DIR}
      -I${CMAKE_CURRENT_SOURCE_DIR}/src -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "Compiling sim/amd/${name}.cpp" VERBATIM)
  list(APPEND objects ${object})
endforeach()
list(POP_BACK objects test)
add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/libamdsim.so
  COMMAND ${TND_HIP_CLANG} -shared -o ${CMAKE_CURRENT_BINARY_DIR}/libamdsim.so ${objects} -lpthread
  DEPENDS ${objects} COMMENT "Linking libamdsim.so" VERBATIM)
add_custom_target(amdsim DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/libamdsim.so)

# Of the simulator itself, among the programs of tandem_hip_tests.
set(parts ${objects})
list(FILTER parts EXCLUDE REGEX "(device|hip)[.]o$")
set(program ${CMAKE_CURRENT_BINARY_DIR}/hip_amdsim_test)
add_custom_command(OUTPUT ${program}
  COMMAND ${TND_HIP_CLANG} -o ${program} ${test} ${parts} -lpthread
  DEPENDS ${parts} ${test} COMMENT "Linking hip_amdsim_test" VERBATIM)
add_custom_target(amdsim_test DEPENDS ${program})
