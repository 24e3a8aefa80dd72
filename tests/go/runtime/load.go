package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// load is a series of events, one after the other as a runtime sends them.
type load struct {
	Lives  int      `json:"lives"`  // pods that come and go
	Events []string `json:"events"` // what each pod goes through; none: its whole life
	Rate   float64  `json:"rate"`   // events a second; 0: back to back
	Expect string   `json:"expect"` // annotation that a labelled container gets
	Raw    string   `json:"raw"`    // event whose every latency is told, in the order of size
}

var wholeLife = []string{
	"RunPodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer",
	"StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox",
}

// load runs the series; messages are made beforehand, so only the library and the plugins are measured.
func (r *runtime) load(s *synthetic, l *load) (reply, error) {
	r.loads++
	series := fmt.Sprintf("l%d", r.loads)
	lives := make([]pair, l.Lives)
	for i := range lives {
		lives[i] = s.make(series, i)
	}
	events := l.Events
	if len(events) == 0 {
		events = wholeLife
	}
	took := map[string][]time.Duration{}
	adjusted, done := 0, 0
	began := time.Now()
	for _, p := range lives {
		for _, event := range events {
			if l.Rate > 0 {
				time.Sleep(time.Until(began.Add(time.Duration(float64(done) / l.Rate * float64(time.Second)))))
			}
			p.container.State = stateAt(event)
			at := time.Now()
			marked, err := r.one(event, p, l.Expect)
			if err != nil {
				return nil, fmt.Errorf("%s after %d events: %w", event, done, err)
			}
			key := event + "/unlabelled"
			if p.labelled {
				key = event + "/labelled"
			}
			took[key] = append(took[key], time.Since(at))
			done++
			if marked {
				adjusted++
			}
		}
	}
	seconds := time.Since(began).Seconds()
	latency := map[string]reply{}
	for key, values := range took {
		latency[key] = quantiles(values)
		if l.Raw != "" && strings.HasPrefix(key, l.Raw+"/") {
			raw := []float64{}
			for _, value := range values {
				raw = append(raw, float64(value.Nanoseconds())/1000)
			}
			latency[key]["raw"] = raw
		}
	}
	return reply{"events": done, "seconds": seconds, "events_per_s": float64(done) / seconds, "adjusted": adjusted, "latency_us": latency}, nil
}

func stateAt(event string) nri.ContainerState {
	switch event {
	case "PostCreateContainer", "StartContainer":
		return api.ContainerState_CONTAINER_CREATED
	case "PostStartContainer", "StopContainer":
		return api.ContainerState_CONTAINER_RUNNING
	case "RemoveContainer":
		return api.ContainerState_CONTAINER_STOPPED
	}
	return api.ContainerState_CONTAINER_UNKNOWN
}

func (r *runtime) one(event string, p pair, expect string) (marked bool, err error) {
	ctx := context.Background()
	switch event {
	case "CreateContainer":
		res, err := r.adaptation.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: p.pod, Container: p.container})
		_, marked = res.GetAdjust().GetAnnotations()[expect]
		return marked, err
	case "UpdateContainer":
		_, err = r.adaptation.UpdateContainer(ctx, &nri.UpdateContainerRequest{Pod: p.pod, Container: p.container, LinuxResources: p.container.Linux.Resources})
	case "StopContainer":
		_, err = r.adaptation.StopContainer(ctx, &nri.StopContainerRequest{Pod: p.pod, Container: p.container})
	default:
		err = r.notify(ctx, event, p.pod, p.container)
	}
	return false, err
}

func quantiles(values []time.Duration) reply {
	slices.Sort(values)
	at := func(q float64) float64 {
		return float64(values[min(int(q*float64(len(values))), len(values)-1)].Nanoseconds()) / 1000
	}
	return reply{"n": len(values), "p50": at(.5), "p90": at(.9), "p99": at(.99), "max": at(1)}
}
