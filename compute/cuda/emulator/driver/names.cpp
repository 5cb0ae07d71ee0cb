// The names of the errors, and the functions that are there to be linked with but not emulated.

#include "machine.h"

namespace emulator {
namespace {

struct named {
	status code;
	const char *name, *text;
};

const named kErrors[] = {
	{success, "CUDA_SUCCESS", "no error"},
	{invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
		"no kernel image is available for execution on the device"},
	{invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
	{illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{launch_out_of_resources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
		"too many resources requested for launch"},
	{launch_timeout, "CUDA_ERROR_LAUNCH_TIMEOUT",
		"the launch timed out and was terminated"},
	{host_memory_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
		"part or all of the requested memory range is already mapped"},
	{host_memory_not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
		"pointer does not correspond to a registered memory region"},
	{launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{cooperative_launch_too_large, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
		"too many blocks in cooperative launch"},
	{not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
		"operation not permitted when stream is capturing"},
	{capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
		"operation failed due to a previous error during capture"},
	{capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
		"capture was not initiated in this stream"},
	{capture_unjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
		"capturing stream has unjoined work"},
	{capture_isolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
		"dependency created on uncaptured work in another stream"},
	{capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
		"operation would make the legacy stream depend on a capturing blocking stream"},
	{captured_event, "CUDA_ERROR_CAPTURED_EVENT",
		"operation not permitted on an event last recorded in a capturing stream"},
};

const named *find(int code) {
	for (const named &n : kErrors) {
		if (n.code == code) {
			return &n;
		}
	}
	return nullptr;
}

} // namespace
} // namespace emulator

using namespace emulator;

EXPORT cuGetErrorName(int code, const char **name) {
	const named *n = find(code);
	*name = n == nullptr ? nullptr : n->name;
	return n == nullptr ? invalid_value : success;
}

EXPORT cuGetErrorString(int code, const char **text) {
	const named *n = find(code);
	*text = n == nullptr ? nullptr : n->text;
	return n == nullptr ? invalid_value : success;
}

#define ABSENT(name) \
	EXPORT name() { return not_supported; }

ABSENT(cuArray3DCreate_v2)
ABSENT(cuArray3DGetDescriptor_v2)
ABSENT(cuArrayCreate_v2)
ABSENT(cuArrayDestroy)
ABSENT(cuArrayGetDescriptor_v2)
ABSENT(cuCtxDisablePeerAccess)
ABSENT(cuCtxEnablePeerAccess)
ABSENT(cuCtxGetCacheConfig)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxGetSharedMemConfig)
ABSENT(cuCtxResetPersistingL2Cache)
ABSENT(cuCtxSetCacheConfig)
ABSENT(cuCtxSetLimit)
ABSENT(cuCtxSetSharedMemConfig)
ABSENT(cuDeviceGetP2PAttribute)
ABSENT(cuDevicePrimaryCtxReset_v2)
ABSENT(cuFuncSetSharedMemConfig)
ABSENT(cuGraphAddChildGraphNode)
ABSENT(cuGraphAddDependencies)
ABSENT(cuGraphAddEmptyNode)
ABSENT(cuGraphAddHostNode)
ABSENT(cuGraphAddKernelNode)
ABSENT(cuGraphAddMemcpyNode)
ABSENT(cuGraphAddMemsetNode)
ABSENT(cuGraphClone)
ABSENT(cuGraphCreate)
ABSENT(cuGraphDestroyNode)
ABSENT(cuGraphGetEdges)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkAddFile_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate_v2)
ABSENT(cuLinkDestroy)
ABSENT(cuMemAdvise)
ABSENT(cuMemAllocManaged)
ABSENT(cuMemAllocPitch_v2)
ABSENT(cuMemPrefetchAsync)
ABSENT(cuMemcpy2DAsync_v2)
ABSENT(cuMemcpy2DUnaligned_v2)
ABSENT(cuMemcpy2D_v2)
ABSENT(cuMemcpy3DAsync_v2)
ABSENT(cuMemcpy3DPeer)
ABSENT(cuMemcpy3DPeerAsync)
ABSENT(cuMemcpy3D_v2)
ABSENT(cuMemcpyAtoA_v2)
ABSENT(cuMemcpyAtoD_v2)
ABSENT(cuMemcpyAtoHAsync_v2)
ABSENT(cuMemcpyAtoH_v2)
ABSENT(cuMemcpyDtoA_v2)
ABSENT(cuMemcpyHtoAAsync_v2)
ABSENT(cuMemcpyHtoA_v2)
ABSENT(cuMemcpyPeer)
ABSENT(cuMemcpyPeerAsync)
ABSENT(cuMemsetD2D16Async)
ABSENT(cuMemsetD2D16_v2)
ABSENT(cuMemsetD2D32Async)
ABSENT(cuMemsetD2D32_v2)
ABSENT(cuMemsetD2D8Async)
ABSENT(cuMemsetD2D8_v2)
ABSENT(cuModuleGetGlobal_v2)
ABSENT(cuModuleGetSurfRef)
ABSENT(cuModuleGetTexRef)
ABSENT(cuModuleLoad)
ABSENT(cuModuleLoadFatBinary)
ABSENT(cuPointerGetAttribute)
ABSENT(cuPointerSetAttribute)
ABSENT(cuStreamAttachMemAsync)
ABSENT(cuStreamWaitValue32)
ABSENT(cuStreamWriteValue32)
ABSENT(cuSurfRefGetArray)
ABSENT(cuSurfRefSetArray)
ABSENT(cuTexRefGetAddressMode)
ABSENT(cuTexRefGetAddress_v2)
ABSENT(cuTexRefGetArray)
ABSENT(cuTexRefGetBorderColor)
ABSENT(cuTexRefGetFilterMode)
ABSENT(cuTexRefGetFlags)
ABSENT(cuTexRefGetFormat)
ABSENT(cuTexRefGetMaxAnisotropy)
ABSENT(cuTexRefSetAddress2D_v3)
ABSENT(cuTexRefSetAddressMode)
ABSENT(cuTexRefSetAddress_v2)
ABSENT(cuTexRefSetArray)
ABSENT(cuTexRefSetBorderColor)
ABSENT(cuTexRefSetFilterMode)
ABSENT(cuTexRefSetFlags)
ABSENT(cuTexRefSetFormat)
ABSENT(cuTexRefSetMaxAnisotropy)
ABSENT(cuTexRefSetMipmapFilterMode)
ABSENT(cuTexRefSetMipmapLevelBias)
ABSENT(cuTexRefSetMipmapLevelClamp)
