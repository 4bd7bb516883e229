// The part of onnxruntime's C interface that native kernels need; wheels of onnxruntime carry no headers.
//
// Nothing here can move: OrtApi is a table of functions that only ever grows at its end, and of which only what its
// first version had is used. OrtCustomOp says which version of itself it is.
#pragma once

#include <cstddef>
#include <cstdint>

// Places in the table that are not used.
template <int places>
struct Unused {
  void* place[places];
};

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtCustomOp;

struct OrtApi {
  OrtStatus* (*CreateStatus)(int code, const char* message);
  Unused<25> to_26;
  OrtStatus* (*CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** domain);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  Unused<22> to_51;
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** data);
  Unused<9> to_61;
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* shape, size_t* count);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* shape, int64_t* sizes, size_t count);
  Unused<2> to_65;
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** shape);
  Unused<20> to_86;
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* value);
  Unused<3> to_90;
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index, const OrtValue** value);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* sizes, size_t count,
                                        OrtValue** value);
  Unused<7> to_99;
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* shape);
  Unused<1> to_101;
  void (*ReleaseCustomOpDomain)(OrtCustomOpDomain* domain);
};

static_assert(offsetof(OrtApi, CreateCustomOpDomain) == 26 * sizeof(void*), "place 26 of the table");
static_assert(offsetof(OrtApi, GetTensorMutableData) == 51 * sizeof(void*), "place 51 of the table");
static_assert(offsetof(OrtApi, GetTensorTypeAndShape) == 65 * sizeof(void*), "place 65 of the table");
static_assert(offsetof(OrtApi, KernelInfoGetAttribute_int64) == 86 * sizeof(void*), "place 86 of the table");
static_assert(offsetof(OrtApi, KernelContext_GetOutput) == 91 * sizeof(void*), "place 91 of the table");
static_assert(offsetof(OrtApi, ReleaseCustomOpDomain) == 101 * sizeof(void*), "the last place of version 1");

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

constexpr uint32_t kApiVersion = 16;  // the first whose kernels can refuse their inputs
constexpr int kInvalidArgument = 2;
constexpr int kFloat = 1, kInt64 = 7, kBool = 9;  // types of tensors
constexpr int kRequired = 0, kDefaultMemory = 0;

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
};

}  // extern "C"
