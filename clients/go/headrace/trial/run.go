package trial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	"google.golang.org/grpc/codes"
)

const (
	statusFailed = 1
	// statusDaemonGone is EX_TEMPFAIL of sysexits.h: if the daemon comes back, it recognizes a loss by it.
	statusDaemonGone = 75
	finishWithin     = 10 * time.Second
)

// Func trains one trial. An error is charged to the configuration.
type Func func(ctx context.Context, t *Trial) error

// Option changes how a program runs.
type Option func(*setting)

type setting struct {
	params headrace.Params
	steps  int64
	logger *slog.Logger
}

// ByHand sets the parameters and the full budget of a run that no worker started.
func ByHand(params headrace.Params, steps int64) Option {
	return func(s *setting) { s.params, s.steps = params, steps }
}

// WithLogger logs problems in how the program uses its trial. Without it they go to the standard error, which is the
// trial's log.
func WithLogger(logger *slog.Logger) Option {
	return func(s *setting) { s.logger = logger }
}

// Main runs the trial of this process and exits: with 0 for success, 1 for an error, which it prints, and 75 if the
// worker is gone.
func Main(train Func, options ...Option) {
	err := Run(context.Background(), train, options...)
	var gone *DaemonGoneError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &gone):
		fmt.Fprintln(os.Stderr, "headrace:", err)
		os.Exit(statusDaemonGone)
	}
	fmt.Fprintln(os.Stderr, "headrace: the trial failed:", err)
	os.Exit(statusFailed)
}

// Run runs the trial of this process, reports to the worker how it ended, and returns the error. A panic is also an
// error, with its stack.
func Run(ctx context.Context, train Func, options ...Option) error {
	set := setting{logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	for _, option := range options {
		option(&set)
	}
	side, err := sideOf(set)
	if err != nil {
		return err
	}
	return runWith(ctx, side, train, set)
}

func sideOf(set setting) (runtime, error) {
	found, err := fromEnvironment()
	if err != nil {
		return nil, err
	}
	if found != nil {
		return found, nil
	}
	if set.steps < 1 {
		return nil, errors.New("no worker started this program; to run it by hand, name its parameters and steps with ByHand")
	}
	return &byHand{params: set.params, steps: set.steps, out: os.Stdout}, nil
}

func runWith(ctx context.Context, side runtime, train Func, set setting) error {
	defer func() { _ = side.close() }()
	t, err := attach(ctx, side, set.logger)
	if err != nil {
		return err
	}
	stack, failure := guarded(ctx, t, train)
	if failure == nil {
		failure = t.failure
	}
	var gone *DaemonGoneError
	var refused *RefusedError
	if errors.As(failure, &gone) || (errors.As(failure, &refused) && refused.Code == codes.NotFound) {
		return failure // no report to a daemon that is gone, or under a lease that is over
	}
	text := ""
	if failure != nil {
		text = failure.Error()
	}
	// The caller's context may have ended, but the daemon needs this report all the same.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWithin)
	defer cancel()
	if err := side.finish(last, text, stack); failure == nil {
		return err
	}
	return failure
}

// guarded calls the function; a panic becomes an error with its stack.
func guarded(ctx context.Context, t *Trial, train Func) (stack string, failure error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			stack, failure = string(debug.Stack()), fmt.Errorf("panic: %v", thrown)
			fmt.Fprint(os.Stderr, stack)
		}
	}()
	return "", train(ctx, t)
}
