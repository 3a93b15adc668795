"""The StudyService's methods: name, request and response, for both kinds of channel."""

from headrace.client.flow import Method
from headrace.v1 import study_pb2 as pb

CREATE_STUDY = Method("CreateStudy", pb.CreateStudyRequest, pb.CreateStudyResponse)
GET_STUDY = Method("GetStudy", pb.GetStudyRequest, pb.GetStudyResponse)
LIST_STUDIES = Method("ListStudies", pb.ListStudiesRequest, pb.ListStudiesResponse)
PAUSE_STUDY = Method("PauseStudy", pb.PauseStudyRequest, pb.PauseStudyResponse)
RESUME_STUDY = Method("ResumeStudy", pb.ResumeStudyRequest, pb.ResumeStudyResponse)
STOP_STUDY = Method("StopStudy", pb.StopStudyRequest, pb.StopStudyResponse)
DELETE_STUDY = Method("DeleteStudy", pb.DeleteStudyRequest, pb.DeleteStudyResponse)
ADD_TRIALS = Method("AddTrials", pb.AddTrialsRequest, pb.AddTrialsResponse)
GET_TRIAL = Method("GetTrial", pb.GetTrialRequest, pb.GetTrialResponse)
LIST_TRIALS = Method("ListTrials", pb.ListTrialsRequest, pb.ListTrialsResponse)
PAUSE_TRIAL = Method("PauseTrial", pb.PauseTrialRequest, pb.PauseTrialResponse)
RESUME_TRIAL = Method("ResumeTrial", pb.ResumeTrialRequest, pb.ResumeTrialResponse)
STOP_TRIAL = Method("StopTrial", pb.StopTrialRequest, pb.StopTrialResponse)
WATCH_STUDY = Method("WatchStudy", pb.WatchStudyRequest, pb.WatchStudyResponse)
EXPLAIN_TRIAL = Method("ExplainTrial", pb.ExplainTrialRequest, pb.ExplainTrialResponse)
PREVIEW_STUDY = Method("PreviewStudy", pb.PreviewStudyRequest, pb.PreviewStudyResponse)
SUGGEST_TRIAL = Method("SuggestTrial", pb.SuggestTrialRequest, pb.SuggestTrialResponse)
REPORT_TRIAL = Method("ReportTrial", pb.ReportTrialRequest, pb.ReportTrialResponse)
COMPLETE_TRIAL = Method("CompleteTrial", pb.CompleteTrialRequest, pb.CompleteTrialResponse)
RELEASE_TRIAL = Method("ReleaseTrial", pb.ReleaseTrialRequest, pb.ReleaseTrialResponse)
LIST_REPORTS = Method("ListReports", pb.ListReportsRequest, pb.ListReportsResponse)
FIND_ROOM = Method("FindRoom", pb.FindRoomRequest, pb.FindRoomResponse)
MEASURE_IMPORTANCE = Method("MeasureImportance", pb.MeasureImportanceRequest, pb.MeasureImportanceResponse)
LIST_WORKERS = Method("ListWorkers", pb.ListWorkersRequest, pb.ListWorkersResponse)
