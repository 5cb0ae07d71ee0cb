package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "rondo-test-gpu.sock" // in the kubelet's folder of plugins
)

// devices returns the healthy GPUs and then the broken ones.
func devices(healthy, broken int) []*api.Device {
	var all []*api.Device
	for i := range healthy + broken {
		health := api.Healthy
		if i >= healthy {
			health = api.Unhealthy
		}
		all = append(all, &api.Device{ID: fmt.Sprintf("gpu-%d", i), Health: health})
	}
	return all
}

// run serves the devices and registers them with the kubelet of the node, until ctx ends.
func run(ctx context.Context, devices []*api.Device) error {
	path := filepath.Join(api.DevicePluginPath, socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // of an earlier life
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &plugin{devices: devices, ended: ctx.Done()})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()
	if err := register(ctx); err != nil {
		return err
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

// register tells the kubelet of the plugin's socket.
func register(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+api.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: resource})
	return err
}

// plugin serves a fixed list of devices.
type plugin struct {
	api.UnimplementedDevicePluginServer

	devices []*api.Device
	ended   <-chan struct{}
}

// GetDevicePluginOptions asks for none of the optional calls.
func (p *plugin) GetDevicePluginOptions(
	context.Context, *api.Empty,
) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the list once: it never changes.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-stream.Context().Done():
	}
	return nil
}

// Allocate prints the GPUs that the kubelet has chosen for a container.
func (p *plugin) Allocate(
	_ context.Context, request *api.AllocateRequest,
) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		fmt.Println("allocated " + ids)
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids}})
	}
	return response, nil
}
