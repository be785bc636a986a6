# The GPU libraries: libtandem_cuda.so and libtandem_hip.so from one source, src/gpu.
#
#   cmake -S native -B native/build -DTND_CUDA=ON && cmake --build native/build --target tandem_cuda
#   cmake -S native -B native/build -DTND_HIP=ON && cmake --build native/build --target tandem_hip
#
# The .cu files are compiled by plain commands instead of CMake's CUDA and HIP languages: those need toolkits laid out
# as the vendors' installers do it, while ours may come from PyPI (nvcc) or from Debian (clang, HIP's headers); see
# tools/gpu-toolchain.sh. Each object has its resource report beside it, <object>.res, which tools/gpures compares with
# GPU_RESOURCES.tsv; of HIP's objects it also compares the kernels that the host launches with those of each processor's
# code. Nothing here is part of the target `all`.
option(TND_CUDA "Add the target tandem_cuda" OFF)
option(TND_HIP "Add the target tandem_hip" OFF)
set(TND_GPU_CACHE "${CMAKE_CURRENT_SOURCE_DIR}/../build/gpu-toolchain" CACHE PATH
  "Folder of tools/gpu-toolchain.sh, looked into when the system has no toolkit")
set(TND_CUDA_ROOT "" CACHE PATH "CUDA toolkit (holds bin/nvcc); empty: nvcc on PATH, /usr/local/cuda, TND_GPU_CACHE")
set(TND_CUDA_ARCHS "75;80;86;89;90a;120;110;121" CACHE STRING
  "Compute capabilities to compile for; those that the compiler does not know are left out")
set(TND_HIP_ARCHS "gfx1100;gfx1101;gfx1151;gfx1030;gfx1200;gfx1201" CACHE STRING
  "AMD processors to compile for; those that the compiler does not know are left out")

option(TND_TIMELINE "CUDA kernels note when they run (src/gpu/runtime/timeline.h), for step27b_cuda --timeline" OFF)

# Floating point as on the host (NUMERICS.md): no contraction but by explicit fma, no fast-math, denormals kept.
set(TND_GPU_WARNINGS -Wall -Wextra)
if(TND_WERROR)
  list(APPEND TND_GPU_WARNINGS -Werror)
endif()
file(GLOB TND_GPU_KERNELS CONFIGURE_DEPENDS src/gpu/*/*.cu)
file(GLOB TND_GPU_SOURCES CONFIGURE_DEPENDS src/gpu/*/*.cpp)

# The host side of src/gpu names no vendor (runtime.h), so all GPU libraries share its objects.
if(TND_GPU_SOURCES)
  add_library(tandem_gpu_host OBJECT EXCLUDE_FROM_ALL ${TND_GPU_SOURCES})
  target_include_directories(tandem_gpu_host PUBLIC include src)
endif()

# tnd_gpu_library(vendor) makes tandem_<vendor>_objects (for tests and benchmarks, which look inside) and the library
# tandem_<vendor>. Uses TND_<VENDOR>_{COMPILE,DEPFILE,LIBRARIES}.
function(tnd_gpu_library vendor)
  string(TOUPPER ${vendor} key)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${vendor})
  set(objects "")
  foreach(source IN LISTS TND_GPU_KERNELS)
    tnd_gpu_object(${vendor} ${source} ${folder} object)
    list(APPEND objects ${object})
  endforeach()
  # A step of its own between the objects and whatever links them: two programs must not run the same command at once.
  add_custom_target(tandem_${vendor}_kernels DEPENDS ${objects})
  tnd_objects(tandem_${vendor}_objects tandem_host)
  if(TARGET tandem_gpu_host)
    target_sources(tandem_${vendor}_objects INTERFACE $<TARGET_OBJECTS:tandem_gpu_host>)
  endif()
  target_link_libraries(tandem_${vendor}_objects INTERFACE ${objects} ${TND_${key}_LIBRARIES})
  add_dependencies(tandem_${vendor}_objects tandem_${vendor}_kernels)
  tnd_library(tandem_${vendor} tandem_${vendor}_objects)
  set_target_properties(tandem_${vendor} PROPERTIES EXCLUDE_FROM_ALL ON)
endfunction()

# tnd_gpu_object(vendor source folder out) compiles one .cu and names the object in `out`.
function(tnd_gpu_object vendor source folder out)
  string(TOUPPER ${vendor} key)
  get_filename_component(name ${source} NAME_WE)
  set(object ${folder}/${name}.o)
  set(command ${TND_${key}_COMPILE} -I${CMAKE_CURRENT_SOURCE_DIR}/src -I${CMAKE_CURRENT_SOURCE_DIR}/include
    ${TND_${key}_DEPFILE} ${object}.d -c ${source} -o ${object})
  add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.res
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cmake/compile_gpu.sh ${object}.res ${command}
    DEPENDS ${source} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/compile_gpu.sh DEPFILE ${object}.d
    COMMENT "Compiling ${name}.cu for ${vendor}" VERBATIM COMMAND_EXPAND_LISTS)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} ${object} PARENT_SCOPE)
endfunction()

if(TND_CUDA)
  include(cmake/cuda.cmake)
  tnd_gpu_library(cuda)
  # tandem_cuda_timeline compiles one file as TND_TIMELINE has all of them, so that it goes on compiling.
  function(tnd_timeline_check)
    list(APPEND TND_CUDA_COMPILE -DTND_TIMELINE)
    tnd_gpu_object(cuda ${CMAKE_CURRENT_SOURCE_DIR}/src/gpu/norm/swiglu.cu
      ${CMAKE_CURRENT_BINARY_DIR}/cuda/timeline object)
    add_custom_target(tandem_cuda_timeline DEPENDS ${object})
  endfunction()
  tnd_timeline_check()
endif()
if(TND_HIP)
  include(cmake/hip.cmake)
  tnd_gpu_library(hip)
  include(cmake/amdsim.cmake)
endif()
