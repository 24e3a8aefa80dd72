//go:build nri_no_context

package main

import (
	"github.com/containerd/nri/pkg/api"
)

type (
	pod       = *api.PodSandbox
	container = *api.Container
	updates   = []*api.ContainerUpdate
)

func (p *plugin) Synchronize(pods []*api.PodSandbox, containers []*api.Container) (updates, error) {
	p.synchronize(pods, containers)
	return nil, nil
}

func (p *plugin) CreateContainer(s pod, c container) (*api.ContainerAdjustment, updates, error) {
	return p.create(s, c), nil, nil
}

func (p *plugin) UpdateContainer(s pod, c container) (updates, error) {
	p.keep(s, c)
	return nil, nil
}

func (p *plugin) StopContainer(s pod, c container) (updates, error) {
	p.keep(s, c)
	return nil, nil
}

func (p *plugin) RunPodSandbox(s pod) error                    { p.keep(s, nil); return nil }
func (p *plugin) StopPodSandbox(s pod) error                   { p.keep(s, nil); return nil }
func (p *plugin) RemovePodSandbox(s pod) error                 { p.forget(s, nil); return nil }
func (p *plugin) PostCreateContainer(s pod, c container) error { p.keep(s, c); return nil }
func (p *plugin) StartContainer(s pod, c container) error      { p.keep(s, c); return nil }
func (p *plugin) PostStartContainer(s pod, c container) error  { p.keep(s, c); return nil }
func (p *plugin) PostUpdateContainer(s pod, c container) error { p.keep(s, c); return nil }
func (p *plugin) RemoveContainer(s pod, c container) error     { p.forget(s, c); return nil }
