package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type options struct {
	socket, plugins, config, name, version string
	trace                                  bool
}

// runtime holds what a container runtime would know: its pods and containers, for Synchronize.
type runtime struct {
	adaptation *nri.Adaptation
	log        *memoryLog
	trace      *tracer

	sync.Mutex
	pods       []*nri.PodSandbox
	containers []*nri.Container
	syncs      []reply
	updates    []json.RawMessage // what plugins asked for on their own accord
	loads      int               // makes the ids of each load its own
}

func newRuntime() *runtime {
	return &runtime{log: newMemoryLog(), trace: &tracer{}, syncs: []reply{}, updates: []json.RawMessage{}}
}

func (r *runtime) start(o options) error {
	empty := filepath.Join(filepath.Dir(o.socket), "no-such-directory")
	opts := []nri.Option{nri.WithPluginPath(or(o.plugins, empty)), nri.WithPluginConfigPath(or(o.config, empty))}
	if o.socket != "" {
		opts = append(opts, nri.WithSocketPath(o.socket))
	} else {
		opts = append(opts, nri.WithDisabledExternalConnections())
	}
	if o.trace {
		opts = append(opts, r.trace.options()...)
	}
	a, err := nri.New(o.name, o.version, r.synchronize, r.unsolicited, opts...)
	if err != nil {
		return err
	}
	r.adaptation = a
	return a.Start()
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// synchronize is called by the library for each plugin that registers.
func (r *runtime) synchronize(ctx context.Context, call nri.SyncCB) error {
	r.Lock()
	pods, containers := r.pods, r.containers
	r.Unlock()
	began := time.Now()
	updates, err := call(ctx, pods, containers)
	result := reply{"pods": len(pods), "containers": len(containers), "us": time.Since(began).Microseconds(), "updates": render(updates)}
	if err != nil {
		result["error"] = err.Error()
	}
	r.Lock()
	defer r.Unlock()
	r.syncs = append(r.syncs, result)
	return err
}

func (r *runtime) unsolicited(_ context.Context, updates []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
	r.Lock()
	defer r.Unlock()
	r.updates = append(r.updates, render(updates)...)
	return nil, nil
}

func (r *runtime) state() reply {
	r.Lock()
	defer r.Unlock()
	return reply{"syncs": r.syncs, "unsolicited": r.updates, "log": r.log.all()}
}

// store replaces what the next Synchronize tells.
func (r *runtime) store(c *command) error {
	var pods []*nri.PodSandbox
	var containers []*nri.Container
	for _, text := range c.Pods {
		pod := &nri.PodSandbox{}
		if err := parse(text, pod); err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	for _, text := range c.Containers {
		container := &nri.Container{}
		if err := parse(text, container); err != nil {
			return err
		}
		containers = append(containers, container)
	}
	r.Lock()
	defer r.Unlock()
	r.pods, r.containers = pods, containers
	return nil
}

// event sends one lifecycle event and returns what the library made of the plugins' replies.
func (r *runtime) event(ctx context.Context, c *command) (reply, error) {
	pod, container, resources := &nri.PodSandbox{}, &nri.Container{}, &nri.LinuxResources{}
	for _, p := range []struct {
		text json.RawMessage
		into proto.Message
	}{{c.Pod, pod}, {c.Container, container}, {c.Resources, resources}} {
		if err := parse(p.text, p.into); err != nil {
			return nil, err
		}
	}
	r.trace.drain()
	result := reply{}
	var err error
	switch c.Event {
	case "CreateContainer":
		var res *nri.CreateContainerResponse
		if res, err = r.adaptation.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: pod, Container: container}); err == nil {
			result["adjust"], result["updates"] = render([]*nri.ContainerAdjustment{res.GetAdjust()})[0], render(res.GetUpdate())
		}
	case "UpdateContainer":
		var res *nri.UpdateContainerResponse
		req := &nri.UpdateContainerRequest{Pod: pod, Container: container, LinuxResources: resources}
		if res, err = r.adaptation.UpdateContainer(ctx, req); err == nil {
			result["updates"] = render(res.GetUpdate())
		}
	case "StopContainer":
		var res *nri.StopContainerResponse
		if res, err = r.adaptation.StopContainer(ctx, &nri.StopContainerRequest{Pod: pod, Container: container}); err == nil {
			result["updates"] = render(res.GetUpdate())
		}
	default:
		err = r.notify(ctx, c.Event, pod, container)
	}
	if replies := r.trace.drain(); replies != nil {
		result["replies"] = replies
	}
	return result, err
}

// notify sends an event whose reply carries nothing.
func (r *runtime) notify(ctx context.Context, event string, pod *nri.PodSandbox, container *nri.Container) error {
	a := r.adaptation
	switch event {
	case "RunPodSandbox":
		return a.RunPodSandbox(ctx, &nri.RunPodSandboxRequest{Pod: pod})
	case "StopPodSandbox":
		return a.StopPodSandbox(ctx, &nri.StopPodSandboxRequest{Pod: pod})
	case "RemovePodSandbox":
		return a.RemovePodSandbox(ctx, &nri.RemovePodSandboxRequest{Pod: pod})
	case "PostCreateContainer":
		return a.PostCreateContainer(ctx, &nri.PostCreateContainerRequest{Pod: pod, Container: container})
	case "StartContainer":
		return a.StartContainer(ctx, &nri.StartContainerRequest{Pod: pod, Container: container})
	case "PostStartContainer":
		return a.PostStartContainer(ctx, &nri.PostStartContainerRequest{Pod: pod, Container: container})
	case "PostUpdateContainer":
		return a.PostUpdateContainer(ctx, &nri.PostUpdateContainerRequest{Pod: pod, Container: container})
	case "RemoveContainer":
		return a.RemoveContainer(ctx, &nri.RemoveContainerRequest{Pod: pod, Container: container})
	}
	return fmt.Errorf("no such event: %q", event)
}

// parse takes proto field names; fields that this NRI version does not know are dropped, as an old runtime would.
func parse(text json.RawMessage, into proto.Message) error {
	if len(text) == 0 {
		return nil
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, into)
}

func render[M proto.Message](messages []M) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(messages))
	for _, m := range messages {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			panic(err)
		}
		out = append(out, text)
	}
	return out
}

// memoryLog keeps the library's log, the only place where it tells of plugins that come and go.
type memoryLog struct {
	sync.Mutex
	lines   []string
	changed chan struct{}
}

func newMemoryLog() *memoryLog { return &memoryLog{changed: make(chan struct{})} }

func (l *memoryLog) add(level, format string, args ...any) {
	l.Lock()
	defer l.Unlock()
	l.lines = append(l.lines, level+": "+fmt.Sprintf(format, args...))
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *memoryLog) Debugf(_ context.Context, format string, args ...any) {}
func (l *memoryLog) Infof(_ context.Context, format string, args ...any) {
	l.add("info", format, args...)
}
func (l *memoryLog) Warnf(_ context.Context, format string, args ...any) {
	l.add("warn", format, args...)
}
func (l *memoryLog) Errorf(_ context.Context, format string, args ...any) {
	l.add("error", format, args...)
}

func (l *memoryLog) all() []string {
	l.Lock()
	defer l.Unlock()
	return append([]string{}, l.lines...)
}

// wait returns once count lines contain text.
func (l *memoryLog) wait(text string, count int, timeout time.Duration) (reply, error) {
	deadline := time.After(timeout)
	for {
		l.Lock()
		found, changed := []string{}, l.changed
		for _, line := range l.lines {
			if strings.Contains(line, text) {
				found = append(found, line)
			}
		}
		l.Unlock()
		if len(found) >= count {
			return reply{"lines": found}, nil
		}
		select {
		case <-changed:
		case <-deadline:
			return reply{"lines": found, "log": l.all()}, fmt.Errorf("%d of %d log lines with %q after %v", len(found), count, text, timeout)
		}
	}
}
