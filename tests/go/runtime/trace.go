//go:build !nri_no_options

package main

import (
	"context"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/ttrpc"
)

// tracer sees each plugin's own reply, which the merged result does not tell.
type tracer struct {
	sync.Mutex
	on    bool
	calls []reply
}

func (t *tracer) options() []nri.Option {
	t.on = true
	return []nri.Option{nri.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(t.intercept)}, nil)}
}

func (t *tracer) intercept(ctx context.Context, req *ttrpc.Request, res *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
	began := time.Now()
	err := invoke(ctx, req, res)
	call := reply{"method": req.Method, "bytes": len(res.Payload), "request_bytes": len(req.Payload), "us": time.Since(began).Microseconds()}
	if err != nil {
		call["error"] = err.Error()
	} else if res.Status != nil && res.Status.Code != 0 {
		call["code"], call["error"] = res.Status.Code, res.Status.Message
	}
	t.Lock()
	defer t.Unlock()
	t.calls = append(t.calls, call)
	return err
}

func (t *tracer) drain() []reply {
	t.Lock()
	defer t.Unlock()
	if !t.on {
		return nil
	}
	calls := append([]reply{}, t.calls...)
	t.calls = nil
	return calls
}
