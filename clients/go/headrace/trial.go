package headrace

import (
	"context"
	"iter"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// Trial is a handle of one trial.
type Trial struct {
	study  *Study
	number int64
}

// Number counts from 0 within the study.
func (t *Trial) Number() int64 { return t.number }

// Name is its resource name, such as studies/digits/trials/3.
func (t *Trial) Name() string { return trialName(t.study.id, t.number) }

// Get is the trial as of now.
func (t *Trial) Get(ctx context.Context) (*pb.Trial, error) {
	response, err := call(ctx, t.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.GetTrial,
		&pb.GetTrialRequest{Name: t.Name()})
	return response.GetTrial(), err
}

// Explain is everything that happened to the trial. Decisions include the rule and the values that were compared.
func (t *Trial) Explain(ctx context.Context) (*pb.ExplainTrialResponse, error) {
	return call(ctx, t.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ExplainTrial,
		&pb.ExplainTrialRequest{Name: t.Name()})
}

// Reports lists its reports, in order.
func (t *Trial) Reports(ctx context.Context) iter.Seq2[*pb.TrialReport, error] {
	return t.study.client.reports(ctx, t.Name())
}

// Pause pauses the trial at its next rung. It stays paused until it is resumed.
func (t *Trial) Pause(ctx context.Context) (*pb.Trial, error) {
	response, err := call(ctx, t.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.PauseTrial,
		&pb.PauseTrialRequest{RequestId: requestID(), Name: t.Name()})
	return response.GetTrial(), err
}

// Resume undoes Pause.
func (t *Trial) Resume(ctx context.Context) (*pb.Trial, error) {
	response, err := call(ctx, t.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ResumeTrial,
		&pb.ResumeTrialRequest{RequestId: requestID(), Name: t.Name()})
	return response.GetTrial(), err
}

// Stop cancels the trial. The reason is for people, and may be empty.
func (t *Trial) Stop(ctx context.Context, reason string) (*pb.Trial, error) {
	response, err := call(ctx, t.study.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.StopTrial,
		&pb.StopTrialRequest{RequestId: requestID(), Name: t.Name(), Reason: reason})
	return response.GetTrial(), err
}

func (c *Client) reports(ctx context.Context, parent string) iter.Seq2[*pb.TrialReport, error] {
	return pages(func(token string) ([]*pb.TrialReport, []*pb.Unshown, string, error) {
		page, err := call(ctx, c.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ListReports,
			&pb.ListReportsRequest{Parent: parent, PageSize: pageSize, PageToken: token})
		return page.GetReports(), page.GetUnshown(), page.GetNextPageToken(), err
	})
}
