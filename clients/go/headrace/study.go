package headrace

import (
	"context"
	"iter"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// Study is a handle to a study.
type Study struct {
	client *Client
	id     string
}

// ID is its bare name, such as digits.
func (s *Study) ID() string { return s.id }

// Name is its resource name, such as studies/digits.
func (s *Study) Name() string { return studyPrefix + s.id }

// Trial returns a handle to one of its trials.
func (s *Study) Trial(number int64) *Trial { return &Trial{study: s, number: number} }

// Get returns the study's current state.
func (s *Study) Get(ctx context.Context) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.GetStudy, &pb.GetStudyRequest{}))
}

// Best returns the best trial so far, without the baseline; nil before the first finite value. A study with several objectives
// has a Pareto front instead: call Get, and read its status.
func (s *Study) Best(ctx context.Context) (*pb.Trial, error) {
	found, err := s.Get(ctx)
	return found.GetStatus().GetBest(), err
}

// Trials lists the trials by number: those in one of the states, or all.
func (s *Study) Trials(ctx context.Context, states ...pb.TrialState) iter.Seq2[*pb.Trial, error] {
	return s.Select(ctx, &pb.ListTrialsRequest{States: states})
}

// Select lists the trials that match the request's filter, such as "lr>1e-3 state:running", in the order that it names.
func (s *Study) Select(ctx context.Context, request *pb.ListTrialsRequest) iter.Seq2[*pb.Trial, error] {
	return list(ctx, s, pb.StudyServiceClient.ListTrials, request, (*pb.ListTrialsResponse).GetTrials)
}

// Curves returns the trials with the curves of their metrics, in columns, page by page. The request may be empty.
func (s *Study) Curves(ctx context.Context, request *pb.ReadCurvesRequest) iter.Seq2[*pb.ReadCurvesResponse, error] {
	whole := func(page *pb.ReadCurvesResponse) []*pb.ReadCurvesResponse { return []*pb.ReadCurvesResponse{page} }
	return list(ctx, s, pb.StudyServiceClient.ReadCurves, request, whole)
}

// Annotate changes the tags and the note of the study, and returns both as they are now.
func (s *Study) Annotate(ctx context.Context, request *pb.AnnotateRequest) (*pb.AnnotateResponse, error) {
	return send(ctx, s, pb.StudyServiceClient.Annotate, request)
}

// Reports lists every report of its trials.
func (s *Study) Reports(ctx context.Context) iter.Seq2[*pb.TrialReport, error] {
	return reports(ctx, s)
}

// Pause pauses the study. Running trials continue to their next rung and pause there; no others start.
func (s *Study) Pause(ctx context.Context) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.PauseStudy, &pb.PauseStudyRequest{}))
}

// Resume resumes a paused study.
func (s *Study) Resume(ctx context.Context) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.ResumeStudy, &pb.ResumeStudyRequest{}))
}

// Stop cancels every live trial and ends the study. The reason is for people, and may be empty.
func (s *Study) Stop(ctx context.Context, reason string) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.StopStudy, &pb.StopStudyRequest{Reason: reason}))
}

// Delete deletes an ended study. Its name is free at once; its rows, and its files on the workers, are deleted soon after.
func (s *Study) Delete(ctx context.Context) error {
	_, err := send(ctx, s, pb.StudyServiceClient.DeleteStudy, &pb.DeleteStudyRequest{})
	return err
}

// AddTrials adds configurations to try before the sampler is asked again.
func (s *Study) AddTrials(ctx context.Context, configurations ...Params) ([]*pb.Trial, error) {
	request := &pb.AddTrialsRequest{}
	for _, params := range configurations {
		assignment, err := params.proto("parameters")
		if err != nil {
			return nil, err
		}
		request.Parameters = append(request.Parameters, assignment)
	}
	response, err := send(ctx, s, pb.StudyServiceClient.AddTrials, request)
	return response.GetTrials(), err
}

// Retry retries failed trials from their last checkpoints: those with these numbers, or all that failed. A study that has ended
// becomes active again.
func (s *Study) Retry(ctx context.Context, numbers ...int64) (*pb.RetryTrialsResponse, error) {
	return send(ctx, s, pb.StudyServiceClient.RetryTrials, &pb.RetryTrialsRequest{TrialNumbers: numbers})
}

// ExtendTrials gives the study this many more configurations. The study may have ended.
func (s *Study) ExtendTrials(ctx context.Context, trials int32) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.ExtendStudy, &pb.ExtendStudyRequest{Trials: trials}))
}

// ExtendSteps gives the study a larger full budget. The study may have ended.
func (s *Study) ExtendSteps(ctx context.Context, steps int64) (*pb.Study, error) {
	return studyOf(send(ctx, s, pb.StudyServiceClient.ExtendStudy, &pb.ExtendStudyRequest{Steps: steps}))
}

// Importance returns how much each parameter matters for being among the best trials, for each objective.
func (s *Study) Importance(ctx context.Context) ([]*pb.Importance, error) {
	response, err := send(ctx, s, pb.StudyServiceClient.MeasureImportance, &pb.MeasureImportanceRequest{})
	return response.GetImportances(), err
}

// Room returns what the study's trials need that no connected worker has.
func (s *Study) Room(ctx context.Context) (*pb.FindRoomResponse, error) {
	return send(ctx, s, pb.StudyServiceClient.FindRoom, &pb.FindRoomRequest{})
}

// Wait waits until the study has ended, and returns it.
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

// Ended reports whether a study in this state has ended.
func Ended(state pb.StudyState) bool {
	switch state {
	case pb.StudyState_STUDY_STATE_COMPLETED, pb.StudyState_STUDY_STATE_STOPPED, pb.StudyState_STUDY_STATE_FAILED:
		return true
	}
	return false
}
