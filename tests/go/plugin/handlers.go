//go:build !nri_no_context

package main

import (
	"context"

	"github.com/containerd/nri/pkg/api"
)

type (
	pod       = *api.PodSandbox
	container = *api.Container
	updates   = []*api.ContainerUpdate
)

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) (updates, error) {
	p.synchronize(pods, containers)
	return nil, nil
}

func (p *plugin) CreateContainer(_ context.Context, s pod, c container) (*api.ContainerAdjustment, updates, error) {
	return p.create(s, c), nil, nil
}

func (p *plugin) UpdateContainer(_ context.Context, s pod, c container, _ *api.LinuxResources) (updates, error) {
	p.keep(s, c)
	return nil, nil
}

func (p *plugin) StopContainer(_ context.Context, s pod, c container) (updates, error) {
	p.keep(s, c)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, s pod) error    { p.keep(s, nil); return nil }
func (p *plugin) StopPodSandbox(_ context.Context, s pod) error   { p.keep(s, nil); return nil }
func (p *plugin) RemovePodSandbox(_ context.Context, s pod) error { p.forget(s, nil); return nil }
func (p *plugin) PostCreateContainer(_ context.Context, s pod, c container) error {
	p.keep(s, c)
	return nil
}
func (p *plugin) StartContainer(_ context.Context, s pod, c container) error {
	p.keep(s, c)
	return nil
}
func (p *plugin) PostStartContainer(_ context.Context, s pod, c container) error {
	p.keep(s, c)
	return nil
}
func (p *plugin) PostUpdateContainer(_ context.Context, s pod, c container) error {
	p.keep(s, c)
	return nil
}
func (p *plugin) RemoveContainer(_ context.Context, s pod, c container) error {
	p.forget(s, c)
	return nil
}
