// The ops `Statistics` and `Routing` of the domain `nightjar` for onnxruntime on the processor.
//
// A graph holds the same numbers as a function of standard operators, which runs where this library is not registered.
// Kernels reuse their memory between calls but keep no values in it.
//
// Nothing here throws: the library is compiled without exceptions, so that it needs no C++ runtime (runtime.cc).
#include <pthread.h>

#include <memory>
#include <mutex>
#include <vector>

#include "curves.h"
#include "folds.h"
#include "lags.h"
#include "onnxruntime.h"
#include "periods.h"
#include "points.h"
#include "routing.h"
#include "shapes.h"

namespace nightjar {
namespace {

constexpr int kInputs = 6, kOutputs = 2;
constexpr int kInputTypes[kInputs] = {kFloat, kFloat, kFloat, kInt64, kBool, kFloat};
constexpr int kRoutingInputs = 4;
constexpr int kRoutingInputTypes[kRoutingInputs] = {kInt64, kFloat, kInt64, kBool};

// Return from the function with the status of a call to onnxruntime that failed.
#define RETURN_IF_ERROR(call) \
  if (OrtStatus* failed = (call)) return failed

// A mutex of the C library; std::mutex would need a C++ runtime.
class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

// Memory for rows of some length.
struct Workspace {
  explicit Workspace(int longest) : length(longest), points(longest), lags(longest), shapes(longest) {}

  int length;
  Points points;
  Lags lags;
  Shapes shapes;
  std::unique_ptr<Periods> periods;
  std::unique_ptr<Folds> folds;

  // Write the statistics of one light curve.
  void write(const Attributes& attributes, const Curve& curve, Outputs outputs) {
    points.take(curve, attributes.bands);
    write_curve(points, attributes.bands, curve.redshift, outputs);
    if (attributes.lags) lags.write(points, attributes.bands, outputs);
    if (attributes.periods) {
      if (!periods) periods = std::make_unique<Periods>(length);
      periods->write(points, attributes.bands, attributes.periods, outputs);
    }
    if (attributes.shapes) shapes.write(points, attributes.bands, curve.redshift, outputs);
    if (attributes.shapes == 2) {
      if (!periods) periods = std::make_unique<Periods>(length);
      if (!folds) folds = std::make_unique<Folds>(length);
      folds->write(points, attributes.bands, periods->search, periods->sums, outputs);
    }
  }
};

// Workspaces between calls: a fresh page costs more than a short row. Calls from several threads at once have one each.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> acquire(int length) {
    {
      const std::lock_guard<Mutex> guard(lock_);
      if (!free_.empty() && free_.back()->length >= length) {
        std::unique_ptr<Workspace> workspace = std::move(free_.back());
        free_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>(std::max(length, kUsual));
  }

  void release(std::unique_ptr<Workspace> workspace) {
    if (workspace->length > kLongest) return;
    const std::lock_guard<Mutex> guard(lock_);
    if (!free_.empty() && free_.back()->length < workspace->length) free_.pop_back();
    free_.push_back(std::move(workspace));
  }

 private:
  static constexpr int kUsual = 128, kLongest = 1024;  // points
  Mutex lock_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

struct StatisticsKernel {
  const OrtApi* api;
  Attributes attributes;
  mutable WorkspacePool pool;
};

struct Shape {
  size_t axes = 0;
  int64_t sizes[2] = {1, 1};
};

OrtStatus* get_shape(const OrtApi* api, const OrtValue* value, Shape& shape) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  RETURN_IF_ERROR(api->GetTensorTypeAndShape(value, &info));
  OrtStatus* status = api->GetDimensionsCount(info, &shape.axes);
  if (!status && shape.axes >= 1 && shape.axes <= 2) status = api->GetDimensions(info, shape.sizes, shape.axes);
  api->ReleaseTensorTypeAndShapeInfo(info);
  return status;
}

OrtStatus* get_input_shape(const OrtApi* api, OrtKernelContext* context, size_t index, Shape& shape) {
  const OrtValue* value = nullptr;
  RETURN_IF_ERROR(api->KernelContext_GetInput(context, index, &value));
  if (!value) return api->CreateStatus(kInvalidArgument, "an input is missing");
  return get_shape(api, value, shape);
}

// Get the data of an input [B, L], or [B] where the length is 0, of the batch size and length given.
template <class Value>
OrtStatus* get_input(const OrtApi* api, OrtKernelContext* context, size_t index, int64_t rows, int64_t length,
                     const Value*& data) {
  Shape shape;
  RETURN_IF_ERROR(get_input_shape(api, context, index, shape));
  if (shape.axes != (length ? 2u : 1u) || shape.sizes[0] != rows || (length && shape.sizes[1] != length))
    return api->CreateStatus(kInvalidArgument, "inputs are not all [batch, length]");
  const OrtValue* value = nullptr;
  void* address = nullptr;
  RETURN_IF_ERROR(api->KernelContext_GetInput(context, index, &value));
  RETURN_IF_ERROR(api->GetTensorMutableData(const_cast<OrtValue*>(value), &address));
  data = static_cast<const Value*>(address);
  return nullptr;
}

template <class Value, size_t axes>
OrtStatus* get_output(const OrtApi* api, OrtKernelContext* context, size_t index, const int64_t (&sizes)[axes],
                      Value*& data) {
  OrtValue* value = nullptr;
  void* address = nullptr;
  RETURN_IF_ERROR(api->KernelContext_GetOutput(context, index, sizes, axes, &value));
  RETURN_IF_ERROR(api->GetTensorMutableData(value, &address));
  data = static_cast<Value*>(address);
  return nullptr;
}

int width_of(const Attributes& attributes) {
  const int bands = attributes.bands;
  return count_of_curves(bands) + (attributes.lags ? 2 * kLagCount : 0) +
         (attributes.periods ? count_of_periods(bands) : 0) + (attributes.shapes ? count_of_shapes(bands) : 0) +
         (attributes.shapes == 2 ? kFoldCount : 0);
}

OrtStatus* compute(const StatisticsKernel& kernel, OrtKernelContext* context) {
  const OrtApi* api = kernel.api;
  Shape shape;
  RETURN_IF_ERROR(get_input_shape(api, context, 0, shape));
  const int64_t rows = shape.sizes[0], length = shape.sizes[1], width = width_of(kernel.attributes);
  if (shape.axes != 2 || length < 1 || length > (1 << 20))
    return api->CreateStatus(kInvalidArgument, "Statistics: flux is not [batch, length]");
  const float *flux, *flux_err, *time, *redshift;
  const int64_t* band;
  const bool* mask;
  RETURN_IF_ERROR(get_input(api, context, 0, rows, length, flux));
  RETURN_IF_ERROR(get_input(api, context, 1, rows, length, flux_err));
  RETURN_IF_ERROR(get_input(api, context, 2, rows, length, time));
  RETURN_IF_ERROR(get_input(api, context, 3, rows, length, band));
  RETURN_IF_ERROR(get_input(api, context, 4, rows, length, mask));
  RETURN_IF_ERROR(get_input(api, context, 5, rows, 0, redshift));
  float* value;
  bool* defined;
  RETURN_IF_ERROR(get_output(api, context, 0, {rows, width}, value));
  RETURN_IF_ERROR(get_output(api, context, 1, {rows, width}, defined));
  std::unique_ptr<Workspace> workspace = kernel.pool.acquire(static_cast<int>(length));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * length;
    const Curve curve{flux + at, flux_err + at, time + at, band + at, mask + at, redshift[row], static_cast<int>(length)};
    workspace->write(kernel.attributes, curve, {value + row * width, defined + row * width});
  }
  kernel.pool.release(std::move(workspace));
  return nullptr;
}

OrtStatus* create_statistics(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  int64_t bands = 0, lags = 0, periods = 0, shapes = 0;
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "bands", &bands));
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "lags", &lags));
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "periods", &periods));
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "shapes", &shapes));
  if (bands < 1 || bands > kMostBands || periods < 0 || periods > 2 || shapes < 0 || shapes > 2)
    return api->CreateStatus(kInvalidArgument, "Statistics: unsupported attributes");
  const Attributes attributes{static_cast<int>(bands), lags != 0, static_cast<int>(periods), static_cast<int>(shapes)};
  *kernel = new StatisticsKernel{api, attributes, {}};
  return nullptr;
}

struct RoutingKernel {
  const OrtApi* api;
  int64_t layers = 0, bands = 0, leading = 0;
};

OrtStatus* compute(const RoutingKernel& kernel, OrtKernelContext* context) {
  const OrtApi* api = kernel.api;
  Shape expert, logits, band;
  RETURN_IF_ERROR(get_input_shape(api, context, 0, expert));
  RETURN_IF_ERROR(get_input_shape(api, context, 1, logits));
  RETURN_IF_ERROR(get_input_shape(api, context, 2, band));
  RoutingInputs in{};
  RETURN_IF_ERROR(get_input(api, context, 0, expert.sizes[0], expert.sizes[1], in.expert));
  RETURN_IF_ERROR(get_input(api, context, 1, expert.sizes[0], logits.sizes[1], in.logits));
  RETURN_IF_ERROR(get_input(api, context, 2, band.sizes[0], band.sizes[1], in.band));
  RETURN_IF_ERROR(get_input(api, context, 3, band.sizes[0], band.sizes[1], in.mask));
  in.rows = band.sizes[0], in.length = band.sizes[1], in.layers = kernel.layers, in.bands = kernel.bands;
  in.tokens = expert.sizes[0] / in.layers, in.leading = kernel.leading ? in.rows : 0;
  in.kept = expert.sizes[1], in.experts = logits.sizes[1];
  if (expert.sizes[0] % in.layers || !in.valid())
    return api->CreateStatus(kInvalidArgument, "Routing: the inputs do not fit together");
  float *counts, *entropy;
  RETURN_IF_ERROR(get_output(api, context, 0, {in.rows, in.layers, in.bands, in.experts}, counts));
  RETURN_IF_ERROR(get_output(api, context, 1, {in.rows, in.layers}, entropy));
  write_routing(in, counts, entropy);
  return nullptr;
}

OrtStatus* create_routing(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  RoutingKernel made{api};
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "layers", &made.layers));
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "bands", &made.bands));
  RETURN_IF_ERROR(api->KernelInfoGetAttribute_int64(info, "leading", &made.leading));
  if (made.layers < 1 || made.bands < 1)
    return api->CreateStatus(kInvalidArgument, "Routing: unsupported attributes");
  *kernel = new RoutingKernel{made};
  return nullptr;
}

// What the operators have in common.
template <class Kernel>
constexpr OrtCustomOp operator_of() {
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the processor
  op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return kOutputs; };
  op.KernelDestroy = [](void* handle) { delete static_cast<Kernel*>(handle); };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.KernelComputeV2 = [](void* handle, OrtKernelContext* context) {
    return compute(*static_cast<const Kernel*>(handle), context);
  };
  return op;
}

constexpr OrtCustomOp statistics() {
  OrtCustomOp op = operator_of<StatisticsKernel>();
  op.GetName = [](const OrtCustomOp*) -> const char* { return "Statistics"; };
  op.GetInputType = [](const OrtCustomOp*, size_t index) { return kInputTypes[index]; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputs; };
  op.GetOutputType = [](const OrtCustomOp*, size_t index) { return index ? kBool : kFloat; };
  op.CreateKernelV2 = create_statistics;
  return op;
}

constexpr OrtCustomOp routing() {
  OrtCustomOp op = operator_of<RoutingKernel>();
  op.GetName = [](const OrtCustomOp*) -> const char* { return "Routing"; };
  op.GetInputType = [](const OrtCustomOp*, size_t index) { return kRoutingInputTypes[index]; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kRoutingInputs; };
  op.GetOutputType = [](const OrtCustomOp*, size_t) { return kFloat; };
  op.CreateKernelV2 = create_routing;
  return op;
}

constexpr OrtCustomOp kStatistics = statistics(), kRouting = routing();

}  // namespace
}  // namespace nightjar

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                             const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kApiVersion);
  if (!api) return base->GetApi(1)->CreateStatus(1, "this onnxruntime is older than 1.16");
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("nightjar", &domain)) return status;
  OrtStatus* status = api->CustomOpDomain_Add(domain, &nightjar::kStatistics);
  if (!status) status = api->CustomOpDomain_Add(domain, &nightjar::kRouting);
  if (!status) status = api->AddCustomOpDomain(options, domain);
  if (status) api->ReleaseCustomOpDomain(domain);
  return status;
}
