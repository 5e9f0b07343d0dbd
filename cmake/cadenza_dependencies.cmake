# SPDX-License-Identifier: Apache-2.0
# Every dependency is looked for first: a module system's, Spack's or the system's own wins.
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(cadenza_hdf5 INTERFACE)
target_include_directories(cadenza_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(cadenza_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
add_library(cadenza::hdf5 ALIAS cadenza_hdf5)

if(CADENZA_CUDA)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.25.2 does not know nvcc's
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()

include(kokkos)

# The matrix product's library: oneDNN on the host, cuBLAS on devices.
add_library(cadenza_matmul INTERFACE)
add_library(cadenza::matmul ALIAS cadenza_matmul)
if(CADENZA_CUDA)
  target_link_libraries(cadenza_matmul INTERFACE CUDA::cublas)
else()
  find_package(dnnl REQUIRED)
  target_link_libraries(cadenza_matmul INTERFACE DNNL::dnnl)
endif()
