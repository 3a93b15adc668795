package trial

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Trial is one configuration that is being trained. One goroutine uses it.
type Trial struct {
	// Params is the configuration.
	Params headrace.Params

	runtime  runtime
	attached *pb.AttachResponse
	assign   *pb.Assign
	logger   *slog.Logger
	states   []tracked
	best     best

	step      int64
	savedStep int64
	furthest  int64
	milestone int64
	sequence  int64
	saveEvery int64

	begun     bool
	readTime  time.Duration
	trainFrom time.Time
	left      *headrace.Decision
	failure   error // of the message that the loop starts
	untold    bool  // whether it was logged that nothing is tracked
}

func attach(ctx context.Context, side runtime, logger *slog.Logger) (*Trial, error) {
	attached, err := side.attach(ctx)
	if err != nil {
		return nil, err
	}
	assign := attached.GetAssign()
	if assign == nil {
		return nil, errors.New("the worker's answer holds no trial")
	}
	return &Trial{
		Params: headrace.ParamsOf(assign.GetParameters()), runtime: side, attached: attached, assign: assign, logger: logger,
		best: bestOf(assign), milestone: assign.GetNextMilestone(),
		step: assign.GetResumeStep(), savedStep: assign.GetResumeStep(), furthest: assign.GetResumeStep(),
		trainFrom: time.Now(),
	}, nil
}

// Name is studies/STUDY/trials/NUMBER.
func (t *Trial) Name() string { return t.assign.GetLease().GetTrial() }

// Number counts from 0 within the study.
func (t *Trial) Number() int64 {
	name := t.Name()
	number, _ := strconv.ParseInt(name[strings.LastIndex(name, "/")+1:], 10, 64)
	return number
}

// Seed is the trial's own seed. A resumed trial has the same seed: track a generator to continue with its numbers.
func (t *Trial) Seed() int64 { return t.assign.GetSeed() }

// Step is the step being trained, or last trained; 0 before the first.
func (t *Trial) Step() int64 { return t.step }

// MaxSteps is the full budget.
func (t *Trial) MaxSteps() int64 { return t.assign.GetMaxSteps() }

// Milestone is the step at which the next report waits for a decision.
func (t *Trial) Milestone() int64 { return t.milestone }

// Resumed says whether this process continues from a checkpoint.
func (t *Trial) Resumed() bool { return t.attached.GetRestoreDir() != "" }

// Slots are the indices of the granted slots.
func (t *Trial) Slots() []int32 { return t.assign.GetGrant().GetSlots() }

// Decision is what ended the trial; false while it may continue.
func (t *Trial) Decision() (headrace.Decision, bool) {
	if t.left == nil {
		return headrace.Decision{}, false
	}
	return *t.left, true
}

// SaveEvery also saves at the first report at least this many steps after the last save, so that less is lost if a
// machine fails. 0 turns it off.
func (t *Trial) SaveEvery(steps int64) { t.saveEvery = steps }

// Track saves a state with each checkpoint, and loads it now if the trial continues from one. Call it before the
// loop. Track everything that the next step reads, including random number generators. Each state has a folder with
// its name in the checkpoint; a single state with an empty name has the whole folder.
func (t *Trial) Track(name string, state State) error {
	if t.begun {
		return fmt.Errorf("Track(%q): it comes before the loop; what is tracked later would miss checkpoints", name)
	}
	if err := checkName(name, t.states); err != nil {
		return fmt.Errorf("Track(%q): %w", name, err)
	}
	one := tracked{name: name, state: state}
	if t.Resumed() {
		started := time.Now()
		if err := one.load(t.attached.GetRestoreDir()); err != nil {
			return fmt.Errorf("Track(%q): %w", name, err)
		}
		t.readTime += time.Since(started)
	}
	t.states = append(t.states, one)
	return nil
}

// Steps are the remaining steps, up to the full budget. It ends early if the trial is asked to leave. If the message
// to the worker that the loop starts fails, there is no step, and Run returns the error.
func (t *Trial) Steps(ctx context.Context) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		if t.failure = t.begin(ctx); t.failure != nil {
			return
		}
		t.trainFrom = time.Now()
		for t.step < t.MaxSteps() && t.left == nil {
			t.step++
			if !yield(t.step) {
				return
			}
		}
	}
}

// Report sends the result of the step. At the milestone it saves first, and waits for the decision. Put it last in
// the loop's body: changes after it are not in the checkpoint.
//
// The error is a *RefusedError for a step that cannot be reported, and a *DaemonGoneError if the worker is gone.
func (t *Trial) Report(ctx context.Context, metrics map[string]float64) error {
	return t.report(ctx, t.step, metrics, false)
}

// ReportSaved is like Report, but also saves before a milestone.
func (t *Trial) ReportSaved(ctx context.Context, metrics map[string]float64) error {
	return t.report(ctx, t.step, metrics, true)
}

// ReportAt reports a step in a loop that is not over Steps. Check Decision afterwards to see whether to continue.
func (t *Trial) ReportAt(ctx context.Context, step int64, metrics map[string]float64) error {
	t.step = step
	return t.report(ctx, step, metrics, false)
}

func (t *Trial) report(ctx context.Context, step int64, metrics map[string]float64, save bool) error {
	if t.left != nil {
		return fmt.Errorf("the trial was told to %s after step %d; end the loop", t.left.Action, t.furthest)
	}
	if err := t.begin(ctx); err != nil {
		return err
	}
	trained := time.Since(t.trainFrom)
	isBest := step > t.furthest && t.best.take(metrics)
	folder, saving, err := "", time.Duration(0), error(nil)
	if save || isBest || t.due(step) {
		started := time.Now()
		if folder, err = t.save(step); err != nil {
			return err
		}
		saving = time.Since(started)
	}
	t.sequence++
	decision, err := t.runtime.report(ctx, &pb.ReportRequest{
		Sequence: t.sequence, Step: step, Metrics: maps.Clone(metrics), CheckpointDir: folder,
		TrainTime: durationpb.New(trained), SaveTime: durationpb.New(saving),
	})
	if err != nil {
		return err
	}
	t.furthest = max(t.furthest, step)
	t.trainFrom = time.Now()
	if decision.Action != headrace.Continue {
		t.left = &decision
	} else if decision.NextMilestone > 0 {
		t.milestone = decision.NextMilestone
	}
	return nil
}

// begin handles, once, the start of the loop. It is reported to the worker if a checkpoint was loaded.
func (t *Trial) begin(ctx context.Context) error {
	if t.begun {
		return nil
	}
	t.begun = true
	if !t.Resumed() {
		return nil
	}
	return t.runtime.restored(ctx, t.readTime)
}

func (t *Trial) due(step int64) bool {
	return step >= t.milestone || (t.saveEvery > 0 && step-t.savedStep >= t.saveEvery)
}

// save writes a checkpoint; the folder is empty if there is nothing to save, or nowhere to save it.
func (t *Trial) save(step int64) (string, error) {
	root := t.attached.GetCheckpointDir()
	if root == "" {
		return "", nil
	}
	if len(t.states) == 0 {
		if !t.untold {
			t.untold = true
			t.logger.Warn("headrace: nothing is tracked, so after a pause this trial starts again from the beginning; call Track")
		}
		return "", nil
	}
	folder := filepath.Join(root, fmt.Sprintf("step-%08d-%06d", step, t.sequence+1))
	if err := write(folder, t.states, t.logger); err != nil {
		return "", fmt.Errorf("the checkpoint of step %d cannot be written: %w", step, err)
	}
	t.savedStep = step
	return folder, nil
}
