# libtandem_emu.so: the GPU source (src/gpu) on the host emulation of sim/host, and the tests that run on it.
#
# Kernels (*.cu) are compiled as C++ through one generated file each, since the same .cu may be compiled for a vendor in
# this build too. tests/gpu_<name>_test.cpp may hold kernels and becomes gpu_<name>_test; the engine's own tests become
# emu_<name>_test of the same objects. The emulation is for tests: `all` has it, no image does.
option(TND_EMU "Build the GPU emulation and its tests" ON)
if(NOT TND_EMU)
  return()
endif()

file(GLOB kernels CONFIGURE_DEPENDS src/gpu/*/*.cu)
file(GLOB emulation CONFIGURE_DEPENDS sim/host/*.cpp)
set(wrapped "")
foreach(kernel IN LISTS kernels)
  get_filename_component(name ${kernel} NAME_WE)
  file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR}/src ${kernel})
  set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emu/${name}_emu.cpp)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${path}\"\n")
  list(APPEND wrapped ${wrapper})
endforeach()

# Unrolling hints are the vendors' compilers'. Kernels are optimised in every build type: they run a thousand threads a
# block, one after the other.
set(TND_EMU_OPTIONS -O2 -Wno-unknown-pragmas)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND TND_EMU_OPTIONS -mavx2 -mfma -mf16c)  # fmaf is one instruction
endif()
if(TND_SANITIZE)
  list(APPEND TND_EMU_OPTIONS -Wno-maybe-uninitialized)
endif()

add_library(tandem_emu_kernels OBJECT ${wrapped} ${emulation})
target_include_directories(tandem_emu_kernels PRIVATE include src ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(tandem_emu_kernels PRIVATE TND_GPU_EMU)
target_compile_options(tandem_emu_kernels PRIVATE ${TND_EMU_OPTIONS})
set_source_files_properties(sim/host/mma.cpp PROPERTIES COMPILE_OPTIONS -O3)

set(parts tandem_host tandem_emu_kernels)
if(TARGET tandem_gpu_host)
  list(APPEND parts tandem_gpu_host)
endif()
tnd_objects(tandem_emu_objects ${parts})
tnd_library(tandem_emu tandem_emu_objects)

# tnd_gpu_test(name source vendor [argument...]) makes a test program of a backend from a source, or from objects.
function(tnd_gpu_test name source vendor)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE tests)
  target_compile_definitions(${name} PRIVATE TND_TESTDATA="${CMAKE_CURRENT_SOURCE_DIR}/tests/testdata"
    TND_ROOT="${CMAKE_CURRENT_SOURCE_DIR}/..")
  target_link_libraries(${name} PRIVATE tandem_${vendor}_objects)
  if(source MATCHES "gpu_scorer_test|gpu_graphs_test|gpu_followed_test|groups_test")
    target_link_libraries(${name} PRIVATE tandem_synthetic)
  endif()
  if(vendor STREQUAL emu)
    target_compile_definitions(${name} PRIVATE TND_GPU_EMU)
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_compile_options(${name} PRIVATE ${TND_EMU_OPTIONS})
    add_test(NAME ${name} COMMAND ${name} ${ARGN})
  else()
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON LINKER_LANGUAGE CXX)
    add_dependencies(tandem_${vendor}_tests ${name})
  endif()
endfunction()

# The engine's tests, which open models through the C ABI or make_backend(nullptr). A case of the emulation may take
# hundreds of times its time on a CPU: of these programs only the cases named here run there.
set(TND_ENGINE_TESTS engine_test engine_errors_test groups_test pages_test snapshot_parts_test model_test dflash_test
  dflash_golden_test)
set(emu_engine_test_CASES bits_do_not tokens_before layer_shards snapshots_ blocks_ dense_ damaged wanted_outputs
  features_are)
set(emu_pages_test_CASES forks_share pending_rows joint_appends)
set(emu_snapshot_parts_test_CASES parts_share parts_of_a_window)
set(emu_model_test_CASES random_shape)
set(emu_dflash_test_CASES incremental appends_ batched positions_ feature_order snapshots_ memory_cap demonstration_)
set(emu_dflash_golden_test_CASES fused_features)

file(GLOB tests CONFIGURE_DEPENDS tests/gpu_*_test.cpp)
foreach(source IN LISTS tests)
  get_filename_component(name ${source} NAME_WE)
  tnd_gpu_test(${name} ${source} emu)
endforeach()
add_test(NAME gpu_plain_launches COMMAND gpu_backend_test repeated_steps steps_that_keep rounds_of)
set_tests_properties(gpu_plain_launches PROPERTIES ENVIRONMENT TANDEM_GPU_LAUNCHES=plain)
# Cards with less shared memory: 99 KiB (sm_86, sm_89, sm_120) and 64 KiB (sm_75, which has no products of halves
# either).
foreach(shared 101376 65536)
  add_test(NAME gpu_shared_${shared}_matmul COMMAND gpu_matmul_test)
  add_test(NAME gpu_shared_${shared}_engine COMMAND emu_engine_test bits_do_not snapshots_ features_are blocks_)
  add_test(NAME gpu_shared_${shared}_scorer COMMAND gpu_scorer_test)
  add_test(NAME gpu_shared_${shared}_backend COMMAND gpu_backend_test)
  add_test(NAME gpu_shared_${shared}_groups COMMAND emu_groups_test groups_have prompts_may)
  foreach(part matmul engine scorer backend groups)
    set_tests_properties(gpu_shared_${shared}_${part} PROPERTIES ENVIRONMENT TND_EMU_SHARED=${shared})
  endforeach()
endforeach()
foreach(name IN LISTS TND_ENGINE_TESTS)
  tnd_gpu_test(emu_${name} $<TARGET_OBJECTS:${name}_parts> emu ${emu_${name}_CASES})
  set_target_properties(emu_${name} PROPERTIES LINKER_LANGUAGE CXX)
endforeach()

# The same programs for a device, by name: cmake --build native/build --target tandem_cuda_tests. Those of the emulation
# itself and of single operations (they hold kernels' parts and look into device memory) are for the emulation alone; on
# a device the engine's tests and gpu_ops_bench run the operations.
foreach(vendor cuda hip)
  if(TARGET tandem_${vendor}_objects)
    add_custom_target(tandem_${vendor}_tests)
    foreach(name IN LISTS TND_ENGINE_TESTS)
      tnd_gpu_test(${vendor}_${name} $<TARGET_OBJECTS:${name}_parts> ${vendor})
    endforeach()
    foreach(source IN LISTS tests)
      get_filename_component(name ${source} NAME_WE)
      if(NOT name MATCHES "^gpu_(emu|ops)")
        tnd_gpu_test(${vendor}_${name} ${source} ${vendor})
      endif()
    endforeach()
    if(vendor STREQUAL hip)
      add_dependencies(tandem_hip_tests amdsim_test)
    endif()
  endif()
endforeach()
