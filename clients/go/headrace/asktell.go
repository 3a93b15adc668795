package headrace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"
	"time"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

// warnAfter is how long to wait for a trial before a warning is logged.
const warnAfter = 10 * time.Second

// AskOption changes how to ask for trials.
type AskOption func(*pb.SuggestTrialRequest)

// WithClientID names the caller. Without it, each Ask and each AskAll draws a name.
func WithClientID(id string) AskOption {
	return func(r *pb.SuggestTrialRequest) { r.ClientId = id }
}

// WithLease sets how long the caller keeps a trial without a report; the default is 6 hours. After that the trial is offered
// to others. Until one of them gets it, a late report still counts. Each report and each renewal (KeepAlive) starts the time
// again.
func WithLease(lease time.Duration) AskOption {
	return func(r *pb.SuggestTrialRequest) { r.LeaseTime = durationpb.New(lease) }
}

// Asked is a trial that the caller runs in its own loop, under a lease.
type Asked struct {
	// Trial is the trial as it was when it was handed out.
	Trial *pb.Trial
	// Lease is the right to run it.
	Lease *pb.LeaseRef
	// Params is its configuration.
	Params Params
	// Milestone is the step up to which it may run before it must ask.
	Milestone int64

	study *Study
}

// Ask returns the next trial. While every trial waits for the results of others, it waits too, for as long as the context
// allows. The error is StudyOver if the study has ended.
func (s *Study) Ask(ctx context.Context, options ...AskOption) (*Asked, error) {
	request := &pb.SuggestTrialRequest{ClientId: requestID()}
	for _, option := range options {
		option(request)
	}
	pauses := []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	began, warned := time.Now(), false
	for attempt := 0; ; attempt++ {
		request.RequestId = requestID()
		answer, err := send(ctx, s, pb.StudyServiceClient.SuggestTrial, request)
		switch {
		case err != nil:
			return nil, err
		case answer.GetTrial() != nil:
			return &Asked{
				Trial: answer.GetTrial(), Lease: answer.GetLease(), Params: ParamsOf(answer.GetTrial().GetParameters()),
				Milestone: answer.GetNextMilestone(), study: s,
			}, nil
		case answer.GetDone():
			return nil, s.over(ctx)
		}
		if !warned && time.Since(began) >= warnAfter {
			warned = true
			s.client.transport.settings.logger.Warn(
				"headrace: there is no trial to run now; the study is paused, or others hold its trials", "study", s.id)
		}
		if !sleep(ctx, pauses[min(attempt, len(pauses)-1)]) {
			return nil, ended(ctx)
		}
	}
}

// AskAll returns trials one after another until the study is over. The whole loop has one client id. If you break out of the
// loop, you still hold the current trial: complete it or release it, or its lease expires.
func (s *Study) AskAll(ctx context.Context, options ...AskOption) iter.Seq2[*Asked, error] {
	options = append([]AskOption{WithClientID(requestID())}, options...)
	return func(yield func(*Asked, error) bool) {
		for {
			asked, err := s.Ask(ctx, options...)
			if errors.Is(err, StudyOver) || !yield(asked, err) || err != nil {
				return
			}
		}
	}
}

// Number is the trial's number within its study.
func (a *Asked) Number() int64 { return a.Trial.GetNumber() }

// Step is the step to continue from: that of the trial's checkpoint, or 0 without one.
func (a *Asked) Step() int64 { return a.Trial.GetCheckpoint().GetStep() }

// CheckpointURI is the text that was last passed to ReportSaved; empty if the trial starts from scratch.
func (a *Asked) CheckpointURI() string { return a.Trial.GetCheckpoint().GetUri() }

// Report reports the result of a step and returns what to do next. After Pause and Stop the trial is no longer the caller's.
// The error is LeaseStale if it was no longer the caller's before: leave the trial and ask again.
func (a *Asked) Report(ctx context.Context, step int64, metrics map[string]float64) (Decision, error) {
	return a.ReportSaved(ctx, step, metrics, "")
}

// ReportSaved is like Report, and also says where the caller saved its state. The caller that continues the trial gets it as
// CheckpointURI.
func (a *Asked) ReportSaved(ctx context.Context, step int64, metrics map[string]float64, uri string) (Decision, error) {
	request := &pb.ReportTrialRequest{Lease: a.Lease, Step: step, Metrics: maps.Clone(metrics), CheckpointUri: uri}
	response, err := send(ctx, a, pb.StudyServiceClient.ReportTrial, request)
	if err != nil {
		return Decision{}, err
	}
	a.tellMissing(response.GetMissingMetrics())
	return DecisionOf(response.GetDecision())
}

// KeepAlive keeps the trial while an evaluation takes longer than the lease. It renews the lease at this interval until the
// context ends; then it returns nil. It returns early with an error such as LeaseStale. Run it in a goroutine during the
// evaluation.
func (a *Asked) KeepAlive(ctx context.Context, every time.Duration) error {
	for sleep(ctx, every) {
		_, err := send(ctx, a, pb.StudyServiceClient.RenewTrial, &pb.RenewTrialRequest{Lease: a.Lease})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// Complete ends the trial before a decision does.
func (a *Asked) Complete(ctx context.Context) (*pb.Trial, error) { return a.end(ctx, "", false) }

// Fail reports that the trial failed, which counts against its retries.
func (a *Asked) Fail(ctx context.Context, cause error) (*pb.Trial, error) {
	return a.end(ctx, strings.ToValidUTF8(cause.Error(), "\uFFFD"), false)
}

// Infeasible reports that the configuration makes no sense, and why. The trial ends as infeasible: it is not retried, does not
// count as failed and has no result. The sampler avoids such configurations.
func (a *Asked) Infeasible(ctx context.Context, reason string) (*pb.Trial, error) {
	return a.end(ctx, strings.ToValidUTF8(reason, "\uFFFD"), true)
}

// Release gives the trial back, without counting a failure. The next caller that asks continues it from its last checkpoint.
func (a *Asked) Release(ctx context.Context) (*pb.Trial, error) {
	return trialOf(send(ctx, a, pb.StudyServiceClient.ReleaseTrial, &pb.ReleaseTrialRequest{Lease: a.Lease}))
}

func (a *Asked) end(ctx context.Context, why string, infeasible bool) (*pb.Trial, error) {
	request := &pb.CompleteTrialRequest{Lease: a.Lease, Error: why, Infeasible: infeasible}
	response, err := send(ctx, a, pb.StudyServiceClient.CompleteTrial, request)
	a.tellMissing(response.GetMissingMetrics())
	return response.GetTrial(), err
}

// tellMissing warns that a trial ended without a metric that a constraint needs.
func (a *Asked) tellMissing(metrics []string) {
	if len(metrics) > 0 {
		a.study.client.transport.settings.logger.Warn("headrace: a trial ended without metrics that constraints read, so it "+
			"never counts as a result: report them together with the objective",
			"study", a.study.id, "trial", a.Number(), "metrics", strings.Join(metrics, ", "))
	}
}

// over is the error of Ask for a study that has ended. It names a failure, which would otherwise look like success.
func (s *Study) over(ctx context.Context) *Error {
	over := &Error{
		Reason: StudyOver, Code: codes.FailedPrecondition,
		Message: fmt.Sprintf("Study %s is over", s.id), Remedy: "Wait returns its result.",
	}
	now, err := s.Get(ctx)
	if err == nil && now.GetState() == pb.StudyState_STUDY_STATE_FAILED {
		over.Message = fmt.Sprintf("Study %s has failed: %s", s.id, now.GetDetail())
		s.client.transport.settings.logger.Warn("headrace: the study has failed", "study", s.id, "detail", now.GetDetail())
	}
	return over
}
