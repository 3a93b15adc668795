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

// warnAfter is how long Ask waits for a trial before it logs a warning.
const warnAfter = 10 * time.Second

// AskOption changes how to ask for trials.
type AskOption func(*pb.SuggestTrialRequest)

// WithClientID names the caller. Without it, each Ask and each AskAll draws a name.
func WithClientID(id string) AskOption {
	return func(r *pb.SuggestTrialRequest) { r.ClientId = id }
}

// WithLease sets how long the caller keeps a trial without a report; the default is 6 hours. After that the trial is
// offered to others. Until one of them gets it, a late report still counts. Each report and each renewal (KeepAlive)
// restarts the time.
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
	// Milestone is the step up to which it runs without asking.
	Milestone int64

	study *Study
}

// Ask returns the next trial. While every trial waits for the results of others, it waits for as long as the context
// allows. The error is StudyOver if the study has ended.
func (s *Study) Ask(ctx context.Context, options ...AskOption) (*Asked, error) {
	request := &pb.SuggestTrialRequest{Study: s.Name(), ClientId: requestID()}
	for _, option := range options {
		option(request)
	}
	pauses := []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	began, warned := time.Now(), false
	for attempt := 0; ; attempt++ {
		request.RequestId = requestID()
		answer, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.SuggestTrial, request)
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

// AskAll returns trial after trial until the study is over. The whole loop has one client id. If the loop is left
// early, the current trial is still held: complete it or release it, or its lease expires.
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

// Step is where the trial continues from: the step of its checkpoint, or 0 without one.
func (a *Asked) Step() int64 { return a.Trial.GetCheckpoint().GetStep() }

// CheckpointURI is the text that was last passed to ReportSaved; empty to start from scratch.
func (a *Asked) CheckpointURI() string { return a.Trial.GetCheckpoint().GetUri() }

// Report sends the result of a step and returns what to do next. After Pause and Stop the caller no longer holds the
// trial. The error is LeaseStale if it did not hold the trial before either: leave the trial and ask again.
func (a *Asked) Report(ctx context.Context, step int64, metrics map[string]float64) (Decision, error) {
	return a.ReportSaved(ctx, step, metrics, "")
}

// ReportSaved is Report, and says where the caller saved its state. Whoever continues the trial finds it as CheckpointURI.
func (a *Asked) ReportSaved(ctx context.Context, step int64, metrics map[string]float64, uri string) (Decision, error) {
	return a.tell(ctx, &pb.ReportTrialRequest{Lease: a.Lease, Step: step, Metrics: maps.Clone(metrics), CheckpointUri: uri})
}

// KeepAlive keeps the trial while an evaluation takes longer than the lease. It renews the lease regularly until the
// context ends; the error is then nil. It returns early with an error such as LeaseStale. Run it in a goroutine next
// to the evaluation.
func (a *Asked) KeepAlive(ctx context.Context, every time.Duration) error {
	for sleep(ctx, every) {
		request := &pb.RenewTrialRequest{Lease: a.Lease}
		_, err := call(ctx, a.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.RenewTrial, request)
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// tell sends a report under a new request id.
func (a *Asked) tell(ctx context.Context, report *pb.ReportTrialRequest) (Decision, error) {
	report.RequestId = requestID()
	response, err := call(ctx, a.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ReportTrial, report)
	if err != nil {
		return Decision{}, err
	}
	a.tellMissing(response.GetMissingMetrics())
	return DecisionOf(response.GetDecision())
}

// Complete ends the trial before a decision does.
func (a *Asked) Complete(ctx context.Context) (*pb.Trial, error) { return a.end(ctx, "", false) }

// Fail reports that the trial failed, which counts against its retries.
func (a *Asked) Fail(ctx context.Context, cause error) (*pb.Trial, error) {
	return a.end(ctx, strings.ToValidUTF8(cause.Error(), "\uFFFD"), false)
}

// Infeasible reports that the configuration makes no sense, and why. This ends the trial: it is not tried again, does
// not count as a failure and has no result. The sampler avoids such configurations.
func (a *Asked) Infeasible(ctx context.Context, reason string) (*pb.Trial, error) {
	return a.end(ctx, strings.ToValidUTF8(reason, "\uFFFD"), true)
}

// Release gives the trial back at no cost. Whoever asks next continues from its last checkpoint.
func (a *Asked) Release(ctx context.Context) (*pb.Trial, error) {
	response, err := call(ctx, a.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ReleaseTrial,
		&pb.ReleaseTrialRequest{RequestId: requestID(), Lease: a.Lease})
	return response.GetTrial(), err
}

func (a *Asked) end(ctx context.Context, why string, infeasible bool) (*pb.Trial, error) {
	response, err := call(ctx, a.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.CompleteTrial,
		&pb.CompleteTrialRequest{RequestId: requestID(), Lease: a.Lease, Error: why, Infeasible: infeasible})
	a.tellMissing(response.GetMissingMetrics())
	return response.GetTrial(), err
}

// tellMissing logs that a trial ended without a metric that a constraint reads.
func (a *Asked) tellMissing(metrics []string) {
	if len(metrics) > 0 {
		a.study.client.transport.settings.logger.Warn("headrace: a trial ended without metrics that constraints read, so it "+
			"never counts as a result: report them together with the objective",
			"study", a.study.id, "trial", a.Number(), "metrics", strings.Join(metrics, ", "))
	}
}

// over is the error of asking a study that has ended. It logs a failure, because a failed study looks like a finished
// one.
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
