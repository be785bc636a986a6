# Finds clang with HIP: ROCm's own in /opt/rocm, or Debian's clang-19 with libamdhip64-dev and the device bitcode that
# tools/gpu-toolchain.sh completes (Debian's predates gfx11). Sets what gpu.cmake compiles with.
set(TND_ROCM_PATH "" CACHE PATH "ROCm (holds include/hip); empty: /opt/rocm, then /usr")
set(TND_HIP_BITCODE "" CACHE PATH "Device bitcode (ocml.bc, oclc_isa_version_*.bc); empty: ROCm's, then TND_GPU_CACHE")
set(rocm ${TND_ROCM_PATH})
if(NOT rocm)
  set(rocm /usr)
  if(EXISTS /opt/rocm/include/hip/hip_runtime.h)
    set(rocm /opt/rocm)
  endif()
endif()
find_program(TND_HIP_CLANG NAMES amdclang++ clang++ clang++-19 HINTS ${rocm}/llvm/bin ${rocm}/lib/llvm/bin)
if(rocm STREQUAL /usr)
  find_program(TND_HIP_CLANG_DEBIAN NAMES clang++-19)
  if(TND_HIP_CLANG_DEBIAN)
    set(TND_HIP_CLANG ${TND_HIP_CLANG_DEBIAN})
  endif()
endif()
if(NOT TND_HIP_CLANG OR NOT EXISTS ${rocm}/include/hip/hip_runtime.h)
  message(FATAL_ERROR "TND_HIP: no clang++ or no ${rocm}/include/hip/hip_runtime.h. Install ROCm, set TND_ROCM_PATH, or "
    "run tools/gpu-toolchain.sh hip")
endif()
set(bitcode ${TND_HIP_BITCODE})
if(NOT bitcode)
  foreach(folder ${rocm}/amdgcn/bitcode ${rocm}/lib/llvm/lib/clang/19/lib/amdgcn/bitcode ${TND_GPU_CACHE}/hip/bitcode)
    if(NOT bitcode AND EXISTS ${folder}/ocml.bc)
      set(bitcode ${folder})
    endif()
  endforeach()
endif()
find_library(TND_AMDHIP amdhip64 HINTS ${rocm}/lib)
if(NOT TND_AMDHIP)
  message(FATAL_ERROR "TND_HIP: no libamdhip64.so in ${rocm}/lib")
endif()

set(TND_HIP_CODE "")
set(TND_HIP_KNOWN "")
foreach(arch IN LISTS TND_HIP_ARCHS)
  execute_process(
    COMMAND ${TND_HIP_CLANG} --target=amdgcn-amd-amdhsa -mcpu=${arch} -nogpulib -x c -fsyntax-only /dev/null
    RESULT_VARIABLE unknown OUTPUT_QUIET ERROR_QUIET)
  string(REPLACE gfx "" number ${arch})
  if(unknown OR (bitcode AND NOT EXISTS ${bitcode}/oclc_isa_version_${number}.bc))
    message(STATUS "HIP: no ${arch} with this compiler and bitcode, left out")
  else()
    list(APPEND TND_HIP_CODE --offload-arch=${arch})
    list(APPEND TND_HIP_KNOWN ${arch})
  endif()
endforeach()
if(NOT TND_HIP_CODE)
  message(FATAL_ERROR "TND_HIP: ${TND_HIP_CLANG} with bitcode in \"${bitcode}\" knows none of ${TND_HIP_ARCHS}. "
    "tools/gpu-toolchain.sh hip completes the bitcode of Debian")
endif()

# HIP's headers are the vendor's: as system headers they do not bring their warnings along.
set(TND_HIP_COMPILE ${TND_HIP_CLANG} -x hip --rocm-path=${rocm} -std=c++20 -O3 -DNDEBUG -fPIC -fvisibility=hidden
  -fno-exceptions -ffp-contract=off -fno-math-errno ${TND_GPU_WARNINGS} -Rpass-analysis=kernel-resource-usage
  ${TND_HIP_CODE})
if(bitcode)
  list(APPEND TND_HIP_COMPILE --rocm-device-lib-path=${bitcode})
endif()
set(TND_HIP_DEPFILE -MD -MF)
set(TND_HIP_LIBRARIES ${TND_AMDHIP})
message(STATUS "HIP: ${TND_HIP_CLANG}, for ${TND_HIP_KNOWN}")

# For tools/gpures: which compiler made the reports, and for which processors, which its reports do not say: they come
# in the order of clang, by name. The line of processors also tells it that the objects beside are HIP's.
execute_process(COMMAND ${TND_HIP_CLANG} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "clang version [^ \n]+" version "${version}")
list(SORT TND_HIP_KNOWN)
string(REPLACE ";" " " known "${TND_HIP_KNOWN}")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/hip/compiler.txt "${version}\n${known}\n")
