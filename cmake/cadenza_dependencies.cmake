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

# Messages between devices: NCCL where it is found, else MPI with copies in host memory.
add_library(cadenza_nccl INTERFACE)
add_library(cadenza::nccl ALIAS cadenza_nccl)
if(CADENZA_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    target_compile_definitions(cadenza_nccl INTERFACE CADENZA_NCCL)
    target_include_directories(cadenza_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
    target_link_libraries(cadenza_nccl INTERFACE ${NCCL_LIBRARY})
    message(STATUS "NCCL: ${NCCL_LIBRARY}")
  else()
    message(STATUS "NCCL: not found; run.transport: nccl is emulated over MPI. "
      "NCCL_INCLUDE_DIR and NCCL_LIBRARY name one")
  endif()
endif()

# What our attention is measured against: cuDNN through cudnn-frontend's headers, of the system or of
# PyPI's wheels in the Python environment.
add_library(cadenza_cudnn INTERFACE)
add_library(cadenza::cudnn ALIAS cadenza_cudnn)
if(CADENZA_CUDA)
  file(GLOB wheels "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages"
    ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${wheels}
    PATH_SUFFIXES nvidia/cudnn/include)
  find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9
    HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib PATHS ${wheels}
    PATH_SUFFIXES nvidia/cudnn/lib)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h PATHS ${wheels} PATH_SUFFIXES include)
  if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE_DIR)
    target_compile_definitions(cadenza_cudnn INTERFACE CADENZA_CUDNN)
    target_include_directories(cadenza_cudnn SYSTEM INTERFACE
      ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
    target_link_libraries(cadenza_cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::cudart)
    if(EXISTS ${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend/experimental/nvrtc_shim.h)
      target_link_libraries(cadenza_cudnn INTERFACE CUDA::nvrtc)
    endif()
    message(STATUS "cuDNN: ${CUDNN_LIBRARY}, frontend in ${CUDNN_FRONTEND_INCLUDE_DIR}")
  else()
    message(STATUS "cuDNN or cudnn-frontend: not found; there is no attention.kernel: cudnn. "
      "pip install --no-deps nvidia-cudnn-frontend==1.32.0 gets the headers; CUDNN_INCLUDE_DIR, "
      "CUDNN_LIBRARY and CUDNN_FRONTEND_INCLUDE_DIR name others")
  endif()
endif()
