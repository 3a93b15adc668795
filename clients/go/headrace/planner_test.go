package headrace_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

type planner struct {
	pb.UnimplementedPlannerServiceServer
	plan func(*pb.PlanRequest, grpc.ServerStreamingServer[pb.PlanResponse]) error
}

func (p *planner) Plan(r *pb.PlanRequest, stream grpc.ServerStreamingServer[pb.PlanResponse]) error {
	return p.plan(r, stream)
}

func newPlanner(t *testing.T, plan func(*pb.PlanRequest, grpc.ServerStreamingServer[pb.PlanResponse]) error) *headrace.Planner {
	t.Helper()
	net := newNetwork()
	net.serve(t, "p:2", func(s *grpc.Server) { pb.RegisterPlannerServiceServer(s, &planner{plan: plan}) })
	found, err := headrace.NewPlanner("gone:1,p:2", headrace.WithDialOptions(grpc.WithContextDialer(net.dial)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = found.Close() })
	return found
}

func progressed(tuples int64) *pb.PlanResponse {
	return &pb.PlanResponse{Message: &pb.PlanResponse_Progress{Progress: &pb.PlanProgress{Tuples: tuples}}}
}

func TestAPlanWithProgress(t *testing.T) {
	found := newPlanner(t, func(r *pb.PlanRequest, stream grpc.ServerStreamingServer[pb.PlanResponse]) error {
		for tuples := range int64(3) {
			_ = stream.Send(progressed(tuples))
		}
		return stream.Send(&pb.PlanResponse{
			Message:  &pb.PlanResponse_Plan{Plan: &pb.TrainingPlan{IterationS: 1.5}},
			Complete: true,
		})
	})
	told := 0
	plan, err := found.Plan(t.Context(), &pb.PlanRequest{}, func(*pb.PlanProgress) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	if plan.GetIterationS() != 1.5 || !plan.Complete || told != 3 {
		t.Fatalf("plan %v, told %d times", plan, told)
	}
}

func TestAPlannerGetsTheTokenOfTheEnvironmentOverTLSAlone(t *testing.T) {
	t.Setenv("HEADRACE_TOKEN", "sec\nret") // not allowed in a header
	if _, err := headrace.NewPlanner("tls://p:1"); !errors.Is(err, headrace.InvalidField) {
		t.Fatalf("got %v", err)
	}
	found, err := headrace.NewPlanner("p:1")
	if err != nil {
		t.Fatal(err)
	}
	_ = found.Close()
}

func TestACancelledPlanEndsInTheServerToo(t *testing.T) {
	ended := make(chan struct{})
	found := newPlanner(t, func(_ *pb.PlanRequest, stream grpc.ServerStreamingServer[pb.PlanResponse]) error {
		_ = stream.Send(progressed(1))
		<-stream.Context().Done()
		close(ended)
		return stream.Context().Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := found.Plan(ctx, &pb.PlanRequest{}, func(*pb.PlanProgress) { cancel() })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, headrace.Cancelled) {
		t.Fatalf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the search goes on in the server")
	}
}

func TestWhatDoesNotFitIsAFieldError(t *testing.T) {
	found := newPlanner(t, func(*pb.PlanRequest, grpc.ServerStreamingServer[pb.PlanResponse]) error {
		return failure(codes.InvalidArgument, "INVALID_FIELD", "nothing fits", "Take more.")
	})
	if _, err := found.Plan(t.Context(), &pb.PlanRequest{}, nil); !errors.Is(err, headrace.InvalidField) {
		t.Fatalf("got %v", err)
	}
}
