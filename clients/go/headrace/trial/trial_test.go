package trial

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// worker is a daemon that decides as a test says, over a real Unix socket.
type worker struct {
	pb.UnimplementedTrialRuntimeServiceServer
	attached *pb.AttachResponse
	decide   func(*pb.ReportRequest) (*pb.Decision, error)
	reports  []*pb.ReportRequest
	restored int
	finished *pb.FinishRequest
}

func (w *worker) Attach(_ context.Context, r *pb.AttachRequest) (*pb.AttachResponse, error) {
	if r.GetLeaseId() != "lease-1" {
		return nil, status.Error(codes.NotFound, "You no longer hold this trial")
	}
	return w.attached, nil
}

func (w *worker) Restored(context.Context, *pb.RestoredRequest) (*pb.RestoredResponse, error) {
	w.restored++
	return &pb.RestoredResponse{}, nil
}

func (w *worker) Report(_ context.Context, r *pb.ReportRequest) (*pb.ReportResponse, error) {
	w.reports = append(w.reports, r)
	decision, err := w.decide(r)
	return &pb.ReportResponse{Decision: decision}, err
}

func (w *worker) Finish(_ context.Context, r *pb.FinishRequest) (*pb.FinishResponse, error) {
	w.finished = r
	return &pb.FinishResponse{}, nil
}

// serve starts the worker and sets the environment of a trial's process.
func (w *worker) serve(t *testing.T) (stop func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "rt")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterTrialRuntimeServiceServer(server, w)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	t.Setenv(runtimeVariable, "unix:"+socket)
	t.Setenv(leaseVariable, "lease-1")
	return server.Stop
}

func attachedAt(t *testing.T, milestone int64) *pb.AttachResponse {
	t.Helper()
	value, _ := headrace.Value(0.5)
	return &pb.AttachResponse{CheckpointDir: t.TempDir(), Assign: &pb.Assign{
		Lease:         &pb.LeaseRef{Trial: "studies/s/trials/7"},
		Parameters:    &pb.ParameterAssignment{Values: map[string]*pb.ParameterValue{"lr": value}},
		NextMilestone: milestone, MaxSteps: 9, Metric: "loss", Seed: 3,
	}}
}

// walk is a random walk: each step needs the state of the previous one, and the generator.
type walk struct {
	At     float64
	Source []byte
}

func walking(seen *[]float64) Func {
	return func(ctx context.Context, t *Trial) error {
		source := rand.NewPCG(uint64(t.Seed()), 1)
		state := walk{}
		if err := t.Track("walk", JSON(&state)); err != nil {
			return err
		}
		if t.Resumed() {
			if err := source.UnmarshalBinary(state.Source); err != nil {
				return err
			}
		}
		for range t.Steps(ctx) {
			state.At += rand.New(source).NormFloat64() * t.Params["lr"].(float64)
			state.Source, _ = source.MarshalBinary()
			*seen = append(*seen, state.At)
			if err := t.Report(ctx, map[string]float64{"loss": state.At}); err != nil {
				return err
			}
		}
		return nil
	}
}

func goOn(*pb.ReportRequest) (*pb.Decision, error) {
	return &pb.Decision{Action: pb.DecisionAction_DECISION_ACTION_CONTINUE, NextMilestone: 9}, nil
}

func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

func TestAPausedTrialResumesExactly(t *testing.T) {
	var straight, before, after []float64
	whole := &worker{attached: attachedAt(t, 9), decide: goOn}
	whole.serve(t)
	if err := Run(t.Context(), walking(&straight), quiet()); err != nil {
		t.Fatal(err)
	}

	pauses := &worker{attached: attachedAt(t, 3), decide: func(r *pb.ReportRequest) (*pb.Decision, error) {
		action := pb.DecisionAction_DECISION_ACTION_CONTINUE
		if r.GetStep() == 3 {
			action = pb.DecisionAction_DECISION_ACTION_PAUSE
		}
		return &pb.Decision{Action: action}, nil
	}}
	pauses.serve(t)
	if err := Run(t.Context(), walking(&before), quiet()); err != nil {
		t.Fatal(err)
	}
	saved := pauses.reports[2].GetCheckpointDir()
	if len(pauses.reports) != 3 || saved == "" || pauses.reports[1].GetCheckpointDir() != "" {
		t.Fatalf("reports %v", pauses.reports)
	}
	if pauses.finished == nil || pauses.finished.GetError() != "" || pauses.restored != 0 {
		t.Fatalf("finished %v, restored %d times", pauses.finished, pauses.restored)
	}

	resumed := &worker{attached: attachedAt(t, 9), decide: goOn}
	resumed.attached.RestoreDir, resumed.attached.Assign.ResumeStep = saved, 3
	resumed.serve(t)
	if err := Run(t.Context(), walking(&after), quiet()); err != nil {
		t.Fatal(err)
	}
	if resumed.restored != 1 || resumed.reports[0].GetStep() != 4 || resumed.reports[0].GetSequence() != 1 {
		t.Fatalf("restored %d times, first report %v", resumed.restored, resumed.reports[0])
	}
	if !slices.Equal(straight, append(before, after...)) {
		t.Fatalf("uninterrupted %v\nresumed %v %v", straight, before, after)
	}
}

func TestAnErrorAndAPanicAreTold(t *testing.T) {
	for _, train := range []Func{
		func(context.Context, *Trial) error { return errors.New("a bad batch") },
		func(context.Context, *Trial) error { panic("a bad batch") },
	} {
		side := &worker{attached: attachedAt(t, 9), decide: goOn}
		side.serve(t)
		if err := Run(t.Context(), train, quiet()); err == nil {
			t.Fatal("no error")
		}
		if !strings.Contains(side.finished.GetError(), "a bad batch") {
			t.Fatalf("told %v", side.finished)
		}
		if strings.HasPrefix(side.finished.GetError(), "panic") && !strings.Contains(side.finished.GetTraceback(), "trial_test.go") {
			t.Fatalf("no stack: %v", side.finished)
		}
	}
}

func TestAnErrorThatIsNoTextIsToldToo(t *testing.T) {
	side := &worker{attached: attachedAt(t, 9), decide: goOn}
	side.serve(t)
	long := "\xff of a program's output: " + strings.Repeat("ü", toldBytes) // truncated in the middle of a letter
	if err := Run(t.Context(), func(context.Context, *Trial) error { return errors.New(long) }, quiet()); err == nil {
		t.Fatal("no error")
	}
	if !strings.Contains(side.finished.GetError(), " of a program's output: ü") {
		t.Fatalf("told %v", side.finished)
	}
	if side.restored != 0 {
		t.Fatal("a start from nothing restores nothing")
	}
}

func TestARefusedReportIsAnError(t *testing.T) {
	side := &worker{attached: attachedAt(t, 9), decide: func(*pb.ReportRequest) (*pb.Decision, error) {
		return nil, status.Error(codes.InvalidArgument, "step 12 is past the full budget of 9 steps")
	}}
	side.serve(t)
	err := Run(t.Context(), func(ctx context.Context, t *Trial) error {
		return t.ReportAt(ctx, 12, map[string]float64{"loss": 1})
	}, quiet())
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "past the full budget") {
		t.Fatalf("got %v", err)
	}
}

func TestTheBestReportIsSavedWhereTheStudyKeepsIt(t *testing.T) {
	side := &worker{attached: attachedAt(t, 9), decide: goOn}
	side.attached.Assign.KeepBest = &pb.KeepBest{
		Goal:        pb.Goal_GOAL_MAXIMIZE,
		Constraints: []*pb.Constraint{{Metric: "size", Bound: &pb.Constraint_AtMost{AtMost: 1}}},
	}
	side.serve(t)
	values := []float64{1, 3, 2, 9, 4}
	err := Run(t.Context(), func(ctx context.Context, t *Trial) error {
		if err := t.Track("values", JSON(&values)); err != nil {
			return err
		}
		for step := range t.Steps(ctx) {
			if step > int64(len(values)) {
				return nil
			}
			value := values[step-1]
			if err := t.Report(ctx, map[string]float64{"loss": value, "size": value - 4}); err != nil {
				return err
			}
		}
		return nil
	}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	var saved []int64
	for _, report := range side.reports {
		if report.GetCheckpointDir() != "" {
			saved = append(saved, report.GetStep())
		}
	}
	if !slices.Equal(saved, []int64{1, 2, 5}) {
		t.Fatalf("saved at steps %v", saved)
	}
}

func TestACheckpointOfAnotherProgramIsRefused(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "model"), 0o700); err != nil {
		t.Fatal(err)
	}
	side := &worker{attached: attachedAt(t, 9), decide: goOn}
	side.attached.RestoreDir, side.attached.Assign.ResumeStep = folder, 3
	side.serve(t)
	var seen []float64
	err := Run(t.Context(), walking(&seen), quiet())
	if err == nil || !strings.Contains(err.Error(), `holds "model", but no "walk"`) {
		t.Fatalf("got %v", err)
	}
}

func TestNamesOfStates(t *testing.T) {
	for _, name := range []string{"", "..", "a/b", "twice"} {
		known := []tracked{{name: "twice"}}
		if checkName(name, known) == nil {
			t.Errorf("%q is taken", name)
		}
	}
	if err := checkName("", nil); err != nil {
		t.Errorf("the whole folder is refused: %v", err)
	}
	if checkName("more", []tracked{{name: ""}}) == nil {
		t.Error("a name beside the whole folder is taken")
	}
}

func TestAGangAndABundleAreRefused(t *testing.T) {
	side := &worker{attached: attachedAt(t, 9), decide: goOn}
	side.serve(t)
	t.Setenv(rankVariable, "0")
	err := Run(t.Context(), func(context.Context, *Trial) error { return nil }, quiet())
	if err == nil || !strings.Contains(err.Error(), rankVariable) {
		t.Fatalf("got %v", err)
	}
}

func TestByHand(t *testing.T) {
	t.Setenv(runtimeVariable, "")
	t.Setenv(leaseVariable, "")
	var seen []float64
	out := &strings.Builder{}
	side := &byHand{params: headrace.Params{"lr": 0.5}, steps: 4, out: out}
	if err := runWith(t.Context(), side, walking(&seen), setting{logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 4 || !strings.HasPrefix(out.String(), "step 1: loss=") {
		t.Fatalf("seen %v, said %q", seen, out)
	}
	if err := Run(t.Context(), walking(&seen), quiet()); err == nil || !strings.Contains(err.Error(), "ByHand") {
		t.Fatalf("got %v", err)
	}
}
