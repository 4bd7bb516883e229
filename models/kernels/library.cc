// The op `Statistics` of the domain `nightjar` for onnxruntime on the processor.
//
// A graph holds the same numbers as a function of standard operators, which runs where this library is not registered.
// The kernel keeps memory between calls, but nothing in it.
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "curves.h"
#include "lags.h"
#include "onnxruntime.h"
#include "periods.h"
#include "points.h"
#include "shapes.h"

namespace nightjar {
namespace {

constexpr int kInputs = 6, kOutputs = 2;
constexpr int kInputTypes[kInputs] = {kFloat, kFloat, kFloat, kInt64, kBool, kFloat};

// A status of onnxruntime that is no success; whoever catches it hands it on.
struct StatusError {
  OrtStatus* status;
};

// Memory for rows of some length.
struct Workspace {
  explicit Workspace(int longest) : length(longest), points(longest), lags(longest), shapes(longest) {}

  int length;
  Points points;
  Lags lags;
  Shapes shapes;
  std::unique_ptr<Periods> periods;

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
  }
};

// Workspaces between calls: a fresh page costs more than a short row. Calls from several threads at once have one each.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> acquire(int length) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
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
    const std::lock_guard<std::mutex> guard(lock_);
    if (!free_.empty() && free_.back()->length < workspace->length) free_.pop_back();
    free_.push_back(std::move(workspace));
  }

 private:
  static constexpr int kUsual = 128, kLongest = 1024;  // points
  std::mutex lock_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

struct Kernel {
  const OrtApi* api;
  Attributes attributes;
  mutable WorkspacePool pool;
};

void check(OrtStatus* status) {
  if (status) throw StatusError{status};
}

int64_t attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name) {
  int64_t value = 0;
  check(api->KernelInfoGetAttribute_int64(info, name, &value));
  return value;
}

template <class Body>
OrtStatus* guarded(const OrtApi* api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const StatusError& error) {
    return error.status;
  } catch (const std::exception& error) {
    return api->CreateStatus(kFail, error.what());
  }
}

struct Shape {
  size_t axes = 0;
  int64_t sizes[2] = {1, 1};
};

Shape shape_of(const OrtApi* api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api->GetTensorTypeAndShape(value, &info));
  Shape shape;
  OrtStatus* status = api->GetDimensionsCount(info, &shape.axes);
  if (!status && shape.axes >= 1 && shape.axes <= 2) status = api->GetDimensions(info, shape.sizes, shape.axes);
  api->ReleaseTensorTypeAndShapeInfo(info);
  check(status);
  return shape;
}

// The data of an input [B, L], or [B], of the batch and length given.
const void* input(const Kernel& kernel, OrtKernelContext* context, size_t index, int64_t rows, int64_t length) {
  const OrtValue* value = nullptr;
  check(kernel.api->KernelContext_GetInput(context, index, &value));
  if (!value) throw StatusError{kernel.api->CreateStatus(kInvalidArgument, "Statistics: an input is missing")};
  const Shape shape = shape_of(kernel.api, value);
  if (shape.axes != (length ? 2u : 1u) || shape.sizes[0] != rows || (length && shape.sizes[1] != length))
    throw StatusError{kernel.api->CreateStatus(kInvalidArgument, "Statistics: inputs are not all [batch, length]")};
  void* data = nullptr;
  check(kernel.api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

void* output(const Kernel& kernel, OrtKernelContext* context, size_t index, int64_t rows, int64_t width) {
  const int64_t sizes[2] = {rows, width};
  OrtValue* value = nullptr;
  void* data = nullptr;
  check(kernel.api->KernelContext_GetOutput(context, index, sizes, 2, &value));
  check(kernel.api->GetTensorMutableData(value, &data));
  return data;
}

int width_of(const Attributes& attributes) {
  const int bands = attributes.bands;
  return count_of_curves(bands) + (attributes.lags ? 2 * kLagCount : 0) +
         (attributes.periods ? count_of_periods(bands) : 0) + (attributes.shapes ? count_of_shapes(bands) : 0);
}

void compute(const Kernel& kernel, OrtKernelContext* context) {
  const OrtValue* first = nullptr;
  check(kernel.api->KernelContext_GetInput(context, 0, &first));
  const Shape shape = shape_of(kernel.api, first);
  const int64_t rows = shape.sizes[0], length = shape.sizes[1], width = width_of(kernel.attributes);
  if (shape.axes != 2 || length < 1 || length > (1 << 20))
    throw StatusError{kernel.api->CreateStatus(kInvalidArgument, "Statistics: flux is not [batch, length]")};
  const auto of = [&](size_t index, int64_t wide) { return input(kernel, context, index, rows, wide); };
  const auto* flux = static_cast<const float*>(of(0, length));
  const auto* flux_err = static_cast<const float*>(of(1, length));
  const auto* time = static_cast<const float*>(of(2, length));
  const auto* band = static_cast<const int64_t*>(of(3, length));
  const auto* mask = static_cast<const bool*>(of(4, length));
  const auto* redshift = static_cast<const float*>(of(5, 0));
  auto* value = static_cast<float*>(output(kernel, context, 0, rows, width));
  auto* defined = static_cast<bool*>(output(kernel, context, 1, rows, width));
  std::unique_ptr<Workspace> workspace = kernel.pool.acquire(static_cast<int>(length));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * length;
    const Curve curve{flux + at, flux_err + at, time + at, band + at, mask + at, redshift[row], static_cast<int>(length)};
    workspace->write(kernel.attributes, curve, {value + row * width, defined + row * width});
  }
  kernel.pool.release(std::move(workspace));
}

OrtStatus* create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded(api, [&] {
    const int64_t bands = attribute(api, info, "bands"), periods = attribute(api, info, "periods");
    if (bands < 1 || bands > kMostBands || periods < 0 || periods > 2)
      throw StatusError{api->CreateStatus(kInvalidArgument, "Statistics: attributes that no kernel was written for")};
    const Attributes attributes{static_cast<int>(bands), attribute(api, info, "lags") != 0,
                                attribute(api, info, "shapes") != 0, static_cast<int>(periods)};
    *kernel = new Kernel{api, attributes, {}};
  });
}

OrtStatus* run(void* handle, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(handle);
  return guarded(kernel.api, [&] { compute(kernel, context); });
}

constexpr OrtCustomOp statistics() {
  OrtCustomOp op{};
  op.version = kApiVersion;
  op.GetName = [](const OrtCustomOp*) -> const char* { return "Statistics"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the processor
  op.GetInputType = [](const OrtCustomOp*, size_t index) { return kInputTypes[index]; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputs; };
  op.GetOutputType = [](const OrtCustomOp*, size_t index) { return index ? kBool : kFloat; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return kOutputs; };
  op.KernelDestroy = [](void* handle) { delete static_cast<Kernel*>(handle); };
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kRequired; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kDefaultMemory; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = run;
  return op;
}

constexpr OrtCustomOp kStatistics = statistics();

}  // namespace
}  // namespace nightjar

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                             const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(kApiVersion);
  if (!api) return base->GetApi(1)->CreateStatus(1, "this onnxruntime is older than 1.16");
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("nightjar", &domain)) return status;
  OrtStatus* status = api->CustomOpDomain_Add(domain, &nightjar::kStatistics);
  if (!status) status = api->AddCustomOpDomain(options, domain);
  if (status) api->ReleaseCustomOpDomain(domain);
  return status;
}
