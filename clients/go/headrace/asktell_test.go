package headrace_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc/codes"
)

func TestALoopAsksUntilTheStudyIsOver(t *testing.T) {
	net, fake := newNetwork(), digits()
	asks := 0
	clients := map[string]bool{}
	fake.suggest = func(r *pb.SuggestTrialRequest) (*pb.SuggestTrialResponse, error) {
		clients[r.GetClientId()] = true
		if r.GetLeaseTime().AsDuration() != 90*time.Second {
			t.Errorf("lease %v", r.GetLeaseTime())
		}
		switch asks++; asks {
		case 2: // nothing to run now
			return &pb.SuggestTrialResponse{}, nil
		case 4:
			return &pb.SuggestTrialResponse{Done: true}, nil
		}
		value, _ := headrace.Value(0.25)
		return &pb.SuggestTrialResponse{
			Trial: &pb.Trial{
				Number: int64(asks), Parameters: &pb.ParameterAssignment{Values: map[string]*pb.ParameterValue{"x": value}},
				Checkpoint: &pb.CheckpointRef{Uri: "mine", Step: 2},
			},
			Lease: &pb.LeaseRef{LeaseId: "l"}, NextMilestone: 3,
		}, nil
	}
	fake.report = func(r *pb.ReportTrialRequest) (*pb.ReportTrialResponse, error) {
		if r.GetLease().GetLeaseId() != "l" || r.GetMetrics()["loss"] != 0.5 || r.GetCheckpointUri() != "next" {
			t.Errorf("report %v", r)
		}
		return &pb.ReportTrialResponse{Decision: &pb.Decision{Action: pb.DecisionAction_DECISION_ACTION_PAUSE}}, nil
	}
	net.serve(t, "a:1", fake.register)
	var numbers []int64
	for asked, err := range net.client(t, "a:1").Study("digits").AskAll(t.Context(), headrace.WithLease(90*time.Second)) {
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, asked.Number())
		if asked.Step() != 2 || asked.CheckpointURI() != "mine" || asked.Params["x"] != 0.25 || asked.Milestone != 3 {
			t.Errorf("asked %+v", asked)
		}
		decision, err := asked.ReportSaved(t.Context(), 3, map[string]float64{"loss": 0.5}, "next")
		if err != nil || decision.Action != headrace.Pause {
			t.Fatalf("decision %v, %v", decision, err)
		}
	}
	if len(numbers) != 2 || len(clients) != 1 {
		t.Fatalf("trials %v, %d clients", numbers, len(clients))
	}
}

func TestALostLeaseAndAnUnknownDecision(t *testing.T) {
	net, fake := newNetwork(), digits()
	fake.suggest = func(*pb.SuggestTrialRequest) (*pb.SuggestTrialResponse, error) {
		return &pb.SuggestTrialResponse{Trial: &pb.Trial{}, Lease: &pb.LeaseRef{}}, nil
	}
	reports := 0
	fake.report = func(*pb.ReportTrialRequest) (*pb.ReportTrialResponse, error) {
		if reports++; reports == 1 {
			return nil, failure(codes.FailedPrecondition, "LEASE_STALE", "You no longer hold trial 0", "Ask again.")
		}
		return &pb.ReportTrialResponse{Decision: &pb.Decision{Action: 99}}, nil
	}
	net.serve(t, "a:1", fake.register)
	asked, err := net.client(t, "a:1").Study("digits").Ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = asked.Report(t.Context(), 1, nil); !errors.Is(err, headrace.LeaseStale) {
		t.Fatalf("got %v", err)
	}
	if _, err = asked.Report(t.Context(), 1, nil); !errors.Is(err, headrace.Unsupported) {
		t.Fatalf("got %v", err)
	}
}

func TestALeaseIsKeptByRenewals(t *testing.T) {
	net, fake := newNetwork(), digits()
	fake.suggest = func(*pb.SuggestTrialRequest) (*pb.SuggestTrialResponse, error) {
		return &pb.SuggestTrialResponse{Trial: &pb.Trial{}, Lease: &pb.LeaseRef{LeaseId: "mine"}}, nil
	}
	renewals := 0
	fake.renew = func(r *pb.RenewTrialRequest) (*pb.RenewTrialResponse, error) {
		if renewals++; renewals == 3 {
			return nil, failure(codes.FailedPrecondition, "LEASE_STALE", "You no longer hold trial 0", "Ask again.")
		}
		if r.GetLease().GetLeaseId() != "mine" {
			t.Errorf("renewed %v", r)
		}
		return &pb.RenewTrialResponse{}, nil
	}
	net.serve(t, "a:1", fake.register)
	asked, err := net.client(t, "a:1").Study("digits").Ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := asked.KeepAlive(t.Context(), time.Millisecond); !errors.Is(err, headrace.LeaseStale) || renewals != 3 {
		t.Fatalf("got %v after %d renewals", err, renewals)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := asked.KeepAlive(ctx, time.Hour); err != nil {
		t.Fatalf("a context that ends is no error: %v", err)
	}
}

func TestParametersFitAStruct(t *testing.T) {
	params := headrace.Params{"lr": 0.1, "layers": int64(3), "kind": "adam", "wide": true}
	var into struct {
		LR     float64 `param:"lr"`
		Layers int     `param:"layers"`
		Scale  float32 `param:"layers"`
		Kind   string  `param:"kind"`
		Wide   bool    `param:"wide"`
		Other  float64 `param:"other"`
		Free   string
	}
	into.Other = 7
	if err := params.Decode(&into); err != nil {
		t.Fatal(err)
	}
	if into.LR != 0.1 || into.Layers != 3 || into.Scale != 3 || into.Kind != "adam" || !into.Wide || into.Other != 7 {
		t.Fatalf("got %+v", into)
	}
	var wrong struct {
		Kind float64 `param:"kind"`
	}
	if err := params.Decode(&wrong); !errors.Is(err, headrace.InvalidField) {
		t.Fatalf("got %v", err)
	}
	if err := params.Decode(wrong); !errors.Is(err, headrace.InvalidField) {
		t.Fatalf("got %v", err)
	}
}
