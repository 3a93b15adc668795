package headrace

import (
	"context"
	"iter"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// Study is a handle of one study.
type Study struct {
	client *Client
	id     string
}

// ID is its bare name, such as digits.
func (s *Study) ID() string { return s.id }

// Name is its resource name, such as studies/digits.
func (s *Study) Name() string { return studyPrefix + s.id }

// Trial is a handle of one of its trials.
func (s *Study) Trial(number int64) *Trial { return &Trial{study: s, number: number} }

// Get is the study as of now.
func (s *Study) Get(ctx context.Context) (*pb.Study, error) {
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.GetStudy,
		&pb.GetStudyRequest{Name: s.Name()})
	return response.GetStudy(), err
}

// Best is the best trial so far, not counting the baseline; nil before the first finite value. A study with several
// objectives has a front instead: call Get, and read its status.
func (s *Study) Best(ctx context.Context) (*pb.Trial, error) {
	found, err := s.Get(ctx)
	return found.GetStatus().GetBest(), err
}

// Trials lists the trials by number: those in one of the states, or all.
func (s *Study) Trials(ctx context.Context, states ...pb.TrialState) iter.Seq2[*pb.Trial, error] {
	return pages(func(token string) ([]*pb.Trial, []*pb.Unshown, string, error) {
		page, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ListTrials,
			&pb.ListTrialsRequest{Study: s.Name(), PageSize: pageSize, PageToken: token, States: states})
		return page.GetTrials(), page.GetUnshown(), page.GetNextPageToken(), err
	})
}

// Reports lists every report of its trials.
func (s *Study) Reports(ctx context.Context) iter.Seq2[*pb.TrialReport, error] {
	return s.client.reports(ctx, s.Name())
}

// Pause lets running trials continue to their next rung, where they pause, and starts no others.
func (s *Study) Pause(ctx context.Context) (*pb.Study, error) {
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.PauseStudy,
		&pb.PauseStudyRequest{RequestId: requestID(), Name: s.Name()})
	return response.GetStudy(), err
}

// Resume undoes Pause.
func (s *Study) Resume(ctx context.Context) (*pb.Study, error) {
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ResumeStudy,
		&pb.ResumeStudyRequest{RequestId: requestID(), Name: s.Name()})
	return response.GetStudy(), err
}

// Stop cancels every live trial and ends the study. The reason is for people, and may be empty.
func (s *Study) Stop(ctx context.Context, reason string) (*pb.Study, error) {
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.StopStudy,
		&pb.StopStudyRequest{RequestId: requestID(), Name: s.Name(), Reason: reason})
	return response.GetStudy(), err
}

// Delete removes an ended study with its trials and events. Checkpoints and logs stay.
func (s *Study) Delete(ctx context.Context) error {
	_, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.DeleteStudy,
		&pb.DeleteStudyRequest{RequestId: requestID(), Name: s.Name()})
	return err
}

// AddTrials adds configurations to try before the sampler is asked again.
func (s *Study) AddTrials(ctx context.Context, configurations ...Params) ([]*pb.Trial, error) {
	request := &pb.AddTrialsRequest{RequestId: requestID(), Study: s.Name()}
	for _, params := range configurations {
		assignment, err := params.proto("parameters")
		if err != nil {
			return nil, err
		}
		request.Parameters = append(request.Parameters, assignment)
	}
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.AddTrials, request)
	return response.GetTrials(), err
}

// Retry continues failed trials from their last checkpoints: those with these numbers, or all that failed. A study
// that has ended becomes active again.
func (s *Study) Retry(ctx context.Context, numbers ...int64) (*pb.RetryTrialsResponse, error) {
	return call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.RetryTrials,
		&pb.RetryTrialsRequest{RequestId: requestID(), Study: s.Name(), TrialNumbers: numbers})
}

// ExtendTrials gives the study, which may have ended, this many more configurations.
func (s *Study) ExtendTrials(ctx context.Context, trials int32) (*pb.Study, error) {
	return s.extend(ctx, &pb.ExtendStudyRequest{Trials: trials})
}

// ExtendSteps gives the study, which may have ended, a larger full budget.
func (s *Study) ExtendSteps(ctx context.Context, steps int64) (*pb.Study, error) {
	return s.extend(ctx, &pb.ExtendStudyRequest{Steps: steps})
}

func (s *Study) extend(ctx context.Context, request *pb.ExtendStudyRequest) (*pb.Study, error) {
	request.RequestId, request.Name = requestID(), s.Name()
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ExtendStudy, request)
	return response.GetStudy(), err
}

// Importance says how much each parameter matters for being among the best trials, for each objective.
func (s *Study) Importance(ctx context.Context) ([]*pb.Importance, error) {
	response, err := call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.MeasureImportance,
		&pb.MeasureImportanceRequest{Study: s.Name()})
	return response.GetImportances(), err
}

// Room says what the study's trials need and no connected worker has.
func (s *Study) Room(ctx context.Context) (*pb.FindRoomResponse, error) {
	return call(ctx, s.client.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.FindRoom,
		&pb.FindRoomRequest{Study: s.Name()})
}

// Wait follows the study to its end and returns it.
func (s *Study) Wait(ctx context.Context) (*pb.Study, error) {
	now, err := s.Get(ctx)
	if err != nil || Ended(now.GetState()) {
		return now, err
	}
	for update, err := range s.Watch(ctx, now.GetStatus().GetCursor()) {
		if err != nil {
			return now, err
		}
		now = update.Study
	}
	return now, nil
}

// Ended says whether a study is in a final state.
func Ended(state pb.StudyState) bool {
	switch state {
	case pb.StudyState_STUDY_STATE_COMPLETED, pb.StudyState_STUDY_STATE_STOPPED, pb.StudyState_STUDY_STATE_FAILED:
		return true
	}
	return false
}
