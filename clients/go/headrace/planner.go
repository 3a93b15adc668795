package headrace

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
)

const (
	plannerVariable      = "HEADRACE_PLANNER"
	defaultPlanner       = "127.0.0.1:7441"
	largestPlanBytes     = 64 << 20
	defaultPlanTimeout   = 10 * time.Minute
	plannerAddressRemedy = "Start one with `headrace planner`, or give its address to NewPlanner or in HEADRACE_PLANNER."
)

// Planner talks to a planner, which splits training jobs over a cluster.
type Planner struct {
	transport *transport
}

// NewPlanner creates a client of a planner. The address is as in New. An empty one means HEADRACE_PLANNER, or else
// 127.0.0.1:7441. Over TLS, each call carries the token of HEADRACE_TOKEN if WithToken names none.
func NewPlanner(address string, options ...Option) (*Planner, error) {
	field := "planner"
	if address == "" {
		field, address = plannerVariable, os.Getenv(plannerVariable)
	}
	if address == "" {
		address = defaultPlanner
	}
	found, err := parseTarget(field, address)
	if err != nil {
		return nil, err
	}
	large := WithDialOptions(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largestPlanBytes)))
	set := collect(defaultPlanTimeout, append([]Option{large}, options...))
	// A plain-text planner may have been started by anybody on that machine, so it gets no token that is not meant for
	// it.
	if set.token == "" && (found.tls || set.tls != nil || set.caFile != "") {
		set.token = os.Getenv(tokenVariable)
	}
	made, err := newTransport(found, set, server{kind: "planner", start: plannerAddressRemedy})
	if err != nil {
		return nil, err
	}
	made.attempt = made.settings.timeout // a search may take any time
	return &Planner{transport: made}, nil
}

// Close closes the connections.
func (p *Planner) Close() error { return p.transport.route.close() }

// Plan is the result of a search.
type Plan struct {
	*pb.TrainingPlan
	// Shortlist has the plans to measure, the plan itself first.
	Shortlist []*pb.PlanToMeasure
	// Complete says whether the search was completed.
	Complete bool
	// Bound is the time that no plan can beat; nil if unknown.
	Bound *float64
}

// Plan searches for the fastest plan. progress is called with the progress of the search; it may be nil. The end of
// the context cancels the search, here and on the server. A search that loses its server starts again on the next
// one.
func (p *Planner) Plan(ctx context.Context, request *pb.PlanRequest, progress func(*pb.PlanProgress)) (*Plan, error) {
	limited, cancel := context.WithTimeout(ctx, p.transport.settings.timeout)
	defer cancel()
	for left := len(p.transport.target.replicas) - 1; ; left-- {
		plan, failure := p.search(ctx, limited, request, progress)
		if failure == nil {
			return plan, nil
		}
		if failure.Reason != Unreachable || left <= 0 || limited.Err() != nil {
			return nil, failure
		}
	}
}

// search reads one stream. The caller's own context shows who ended it.
func (p *Planner) search(
	ctx, limited context.Context, request *pb.PlanRequest, progress func(*pb.PlanProgress),
) (*Plan, *Error) {
	conn, err := p.transport.route.conn()
	if err != nil {
		return nil, p.transport.failure(ctx, err)
	}
	streaming, cancel := context.WithCancel(limited)
	defer cancel() // also if progress panics
	stream, err := pb.NewPlannerServiceClient(conn).Plan(streaming, request)
	if err != nil {
		return nil, p.transport.note(ctx, conn, err)
	}
	var plan *Plan
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if failure := p.transport.note(ctx, conn, err); failure != nil {
			return nil, failure
		}
		switch {
		case answer.GetPlan() != nil:
			plan = &Plan{
				TrainingPlan: answer.GetPlan(), Shortlist: answer.GetShortlist(), Complete: answer.GetComplete(), Bound: answer.BoundS,
			}
		case answer.GetProgress() != nil && progress != nil:
			progress(answer.GetProgress())
		}
	}
	if plan == nil {
		return nil, &Error{Reason: Internal, Message: "The planner ended without a plan", Remedy: "Ask again."}
	}
	return plan, nil
}

// Simulate prices and simulates degrees that the caller chose, with the best assignment for them.
func (p *Planner) Simulate(ctx context.Context, request *pb.SimulateRequest) (*pb.SimulateResponse, error) {
	return call(ctx, p.transport, pb.NewPlannerServiceClient, pb.PlannerServiceClient.Simulate, request)
}

// Explain searches, and says why the plan won and what the next best ones lose.
func (p *Planner) Explain(ctx context.Context, request *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	return call(ctx, p.transport, pb.NewPlannerServiceClient, pb.PlannerServiceClient.Explain, request)
}
