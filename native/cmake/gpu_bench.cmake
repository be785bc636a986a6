# Programs for owners of a card: gpu_tester_<vendor> (first contact) and step27b_<vendor> (phases at true shapes), built
# by name; gpu_tester_emu, whose operand-map check is a test here; step27b_emu by name, to try the program without a
# card; and gpu_launches_<emu or hip> by name, for tools/gpures.
#
#   cmake --build native/build --target gpu_tester_cuda step27b_cuda
function(tnd_gpu_benches vendor probe)
  add_executable(gpu_tester_${vendor} bench/gpu_tester.cpp ${probe})
  add_executable(step27b_${vendor} bench/step27b_bench.cpp bench/rates_gpu.cpp ${probe})
  target_link_libraries(step27b_${vendor} PRIVATE tandem_synthetic)
  foreach(program gpu_tester_${vendor} step27b_${vendor})
    target_include_directories(${program} PRIVATE bench)
    target_link_libraries(${program} PRIVATE tandem_${vendor}_objects)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON LINKER_LANGUAGE CXX)
    # Copied to other machines, the programs need nothing but libc and the driver.
    target_link_options(${program} PRIVATE -static-libstdc++ -static-libgcc)
  endforeach()
endfunction()

# gpu_launches_<emu or hip>: what a step launches, for GPU_OCCUPANCY.tsv. What launches kernels is wrapped, so that
# nothing runs.
function(tnd_gpu_launches vendor)
  add_executable(gpu_launches_${vendor} EXCLUDE_FROM_ALL bench/gpu_launches.cpp)
  target_link_libraries(gpu_launches_${vendor} PRIVATE tandem_${vendor}_objects)
  set_target_properties(gpu_launches_${vendor} PROPERTIES LINKER_LANGUAGE CXX)
  foreach(symbol IN LISTS ARGN)
    target_link_options(gpu_launches_${vendor} PRIVATE -Wl,--wrap=${symbol})
  endforeach()
endfunction()

# Kernels timed on their own: bench/gpu_<name>_bench.cu becomes gpu_<name>_bench_<vendor>.
file(GLOB TND_GPU_BENCHES CONFIGURE_DEPENDS bench/gpu_*_bench.cu)
function(tnd_gpu_kernel_bench vendor source)
  get_filename_component(name ${source} NAME_WE)
  tnd_gpu_object(${vendor} ${source} ${CMAKE_CURRENT_BINARY_DIR}/${vendor}/bench object)
  add_executable(${name}_${vendor} ${object})
  target_link_libraries(${name}_${vendor} PRIVATE tandem_${vendor}_objects)
  set_target_properties(${name}_${vendor} PROPERTIES EXCLUDE_FROM_ALL ON LINKER_LANGUAGE CXX)
endfunction()

foreach(vendor cuda hip)
  if(TARGET tandem_${vendor})
    foreach(source IN LISTS TND_GPU_BENCHES)
      tnd_gpu_kernel_bench(${vendor} ${source})
    endforeach()
    tnd_gpu_object(${vendor} ${CMAKE_CURRENT_SOURCE_DIR}/bench/gpu_probe.cu
      ${CMAKE_CURRENT_BINARY_DIR}/${vendor}/bench object)
    add_custom_target(tandem_${vendor}_probe DEPENDS ${object})
    tnd_gpu_benches(${vendor} ${object})
    add_dependencies(gpu_tester_${vendor} tandem_${vendor}_probe)
    add_dependencies(step27b_${vendor} tandem_${vendor}_probe)
  endif()
endforeach()

if(TARGET tandem_hip)
  tnd_gpu_launches(hip hipLaunchKernel hipFuncSetAttribute)
  target_compile_definitions(gpu_launches_hip PRIVATE TND_LAUNCHES_HIP)
endif()

if(TARGET tandem_emu_objects)
  tnd_gpu_launches(emu _ZN3tnd3gpu3emu6launchERNS0_6StreamERKNS0_6LaunchESt8functionIFvvEE)
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emu/gpu_probe_emu.cpp)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"gpu_probe.cu\"\n")
  add_executable(gpu_tester_emu bench/gpu_tester.cpp ${wrapper})
  target_include_directories(gpu_tester_emu PRIVATE bench ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(gpu_tester_emu PRIVATE TND_GPU_EMU)
  target_compile_options(gpu_tester_emu PRIVATE ${TND_EMU_OPTIONS})
  target_link_libraries(gpu_tester_emu PRIVATE tandem_emu_objects)
  add_test(NAME gpu_tester_maps COMMAND gpu_tester_emu --check)
  add_executable(step27b_emu EXCLUDE_FROM_ALL bench/step27b_bench.cpp bench/rates_cpu.cpp)
  target_include_directories(step27b_emu PRIVATE bench)
  target_link_libraries(step27b_emu PRIVATE tandem_emu_objects tandem_synthetic)
endif()
