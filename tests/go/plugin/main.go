// Command nri-plugin is a minimal NRI plugin on the library's own stub: it keeps the pods and containers that it hears
// of, and answers one annotation with another. It is what nri-warmup's plugin is measured against, and a second plugin
// beside it in tests.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
)

type plugin struct {
	sync.Mutex
	ask, answer string
	pods        map[string]*api.PodSandbox
	containers  map[string]*api.Container
}

func main() {
	socket := flag.String("socket", "", "the runtime's NRI socket; none for a launched plugin")
	idx := flag.String("idx", "50", "index: plugins are called in its order")
	name := flag.String("name", "reference", "")
	p := &plugin{pods: map[string]*api.PodSandbox{}, containers: map[string]*api.Container{}}
	flag.StringVar(&p.ask, "ask", "reference.example/ask", "pod annotation to answer")
	flag.StringVar(&p.answer, "answer", "reference.example/answer", "annotation to set on the container")
	flag.Parse()
	logrus.SetOutput(io.Discard)
	opts := []stub.Option{}
	if *socket != "" {
		opts = append(opts, stub.WithPluginName(*name), stub.WithPluginIdx(*idx), stub.WithSocketPath(*socket))
	}
	s, err := stub.New(p, opts...)
	if err == nil {
		err = s.Run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri-plugin:", err)
		os.Exit(1)
	}
}

func (p *plugin) synchronize(pods []*api.PodSandbox, containers []*api.Container) {
	p.Lock()
	defer p.Unlock()
	for _, pod := range pods {
		p.pods[pod.Id] = pod
	}
	for _, c := range containers {
		p.containers[c.Id] = c
	}
}

func (p *plugin) create(pod *api.PodSandbox, c *api.Container) *api.ContainerAdjustment {
	p.keep(pod, c)
	value, ok := pod.Annotations[p.ask]
	if !ok {
		return nil
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddAnnotation(p.answer, value)
	return adjust
}

func (p *plugin) keep(pod *api.PodSandbox, c *api.Container) {
	p.Lock()
	defer p.Unlock()
	p.pods[pod.Id] = pod
	if c != nil {
		p.containers[c.Id] = c
	}
}

func (p *plugin) forget(pod *api.PodSandbox, c *api.Container) {
	p.Lock()
	defer p.Unlock()
	if c != nil {
		delete(p.containers, c.Id)
	} else {
		delete(p.pods, pod.Id)
	}
}
