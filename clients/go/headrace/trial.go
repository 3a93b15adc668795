package headrace

import (
	"context"
	"iter"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// Trial is a handle to a trial.
type Trial struct {
	study  *Study
	number int64
}

// Number counts from 0 within the study.
func (t *Trial) Number() int64 { return t.number }

// Name is its resource name, such as studies/digits/trials/3.
func (t *Trial) Name() string { return trialName(t.study.id, t.number) }

// Get returns the trial's current state.
func (t *Trial) Get(ctx context.Context) (*pb.Trial, error) {
	return trialOf(send(ctx, t, pb.StudyServiceClient.GetTrial, &pb.GetTrialRequest{}))
}

// Explain returns everything that happened to the trial. Decisions include the rule and the values that were compared.
func (t *Trial) Explain(ctx context.Context) (*pb.ExplainTrialResponse, error) {
	return send(ctx, t, pb.StudyServiceClient.ExplainTrial, &pb.ExplainTrialRequest{})
}

// Reports lists its reports, in order.
func (t *Trial) Reports(ctx context.Context) iter.Seq2[*pb.TrialReport, error] {
	return reports(ctx, t)
}

// Pause pauses the trial at its next rung. It stays paused until it is resumed.
func (t *Trial) Pause(ctx context.Context) (*pb.Trial, error) {
	return trialOf(send(ctx, t, pb.StudyServiceClient.PauseTrial, &pb.PauseTrialRequest{}))
}

// Resume resumes a trial that Pause paused.
func (t *Trial) Resume(ctx context.Context) (*pb.Trial, error) {
	return trialOf(send(ctx, t, pb.StudyServiceClient.ResumeTrial, &pb.ResumeTrialRequest{}))
}

// Stop cancels the trial. The reason is for people, and may be empty.
func (t *Trial) Stop(ctx context.Context, reason string) (*pb.Trial, error) {
	return trialOf(send(ctx, t, pb.StudyServiceClient.StopTrial, &pb.StopTrialRequest{Reason: reason}))
}

// Annotate changes the tags and the note of the trial, and returns both as they are now.
func (t *Trial) Annotate(ctx context.Context, request *pb.AnnotateRequest) (*pb.AnnotateResponse, error) {
	return send(ctx, t, pb.StudyServiceClient.Annotate, request)
}

// reports lists the reports of a study or a trial.
func reports(ctx context.Context, of subject) iter.Seq2[*pb.TrialReport, error] {
	return list(ctx, of, pb.StudyServiceClient.ListReports, &pb.ListReportsRequest{}, (*pb.ListReportsResponse).GetReports)
}
