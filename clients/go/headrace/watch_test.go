package headrace_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

type watchStream = grpc.ServerStreamingServer[pb.WatchStudyResponse]

// told is a response with events from one cursor to another; the study ends with the last event.
func told(from, to, last int64) *pb.WatchStudyResponse {
	response := &pb.WatchStudyResponse{Study: &pb.Study{
		State: pb.StudyState_STUDY_STATE_ACTIVE, Status: &pb.StudyStatus{Cursor: to},
	}}
	for cursor := from; cursor <= to; cursor++ {
		response.Events = append(response.Events, &pb.Event{Cursor: cursor})
	}
	if to == last {
		response.Study.State = pb.StudyState_STUDY_STATE_COMPLETED
	}
	return response
}

func TestAWatchGoesOnAtItsCursor(t *testing.T) {
	net, fake := newNetwork(), digits()
	var after []int64
	fake.watch = func(r *pb.WatchStudyRequest, stream watchStream) error {
		after = append(after, r.GetAfterCursor())
		switch len(after) {
		case 1:
			_ = stream.Send(told(1, 3, 9))
			return failure(codes.Unavailable, "DRAINING", "stops", "Again.")
		case 2: // a careless server repeats
			_ = stream.Send(told(2, 6, 9))
			return nil // ends cleanly, although the study lives
		default:
			_ = stream.Send(told(7, 9, 9))
			<-stream.Context().Done()
			return nil
		}
	}
	net.serve(t, "a:1", fake.register)
	var cursors []int64
	for update, err := range net.client(t, "a:1").Study("digits").Watch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range update.Events {
			cursors = append(cursors, event.GetCursor())
		}
	}
	if !slices.Equal(cursors, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Fatalf("cursors %v", cursors)
	}
	if !slices.Equal(after, []int64{0, 3, 6}) {
		t.Fatalf("streams began after %v", after)
	}
}

func TestAWatchOfADeletedStudyEndsWithAnError(t *testing.T) {
	net, fake := newNetwork(), digits()
	begun := 0
	fake.watch = func(_ *pb.WatchStudyRequest, stream watchStream) error {
		if begun++; begun == 1 {
			return stream.Send(told(1, 2, 9))
		}
		return failure(codes.NotFound, "STUDY_NOT_FOUND", "no study 'digits'", "List them.")
	}
	net.serve(t, "a:1", fake.register)
	var last error
	for _, err := range net.client(t, "a:1").Study("digits").Watch(t.Context(), 0) {
		last = err
	}
	if !errors.Is(last, headrace.StudyNotFound) {
		t.Fatalf("got %v", last)
	}
}

func TestAWatchThatIsLeftCancelsItsStream(t *testing.T) {
	net, fake := newNetwork(), digits()
	gone := make(chan struct{})
	fake.watch = func(_ *pb.WatchStudyRequest, stream watchStream) error {
		_ = stream.Send(told(1, 1, 9))
		<-stream.Context().Done()
		close(gone)
		return nil
	}
	net.serve(t, "a:1", fake.register)
	for range net.client(t, "a:1").Study("digits").Watch(t.Context(), 0) {
		break
	}
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("the stream goes on")
	}
}

func TestAContextEndsAWatch(t *testing.T) {
	net, fake := newNetwork(), digits()
	fake.watch = func(_ *pb.WatchStudyRequest, stream watchStream) error {
		<-stream.Context().Done()
		return nil
	}
	net.serve(t, "a:1", fake.register)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var last error
	for _, err := range net.client(t, "a:1").Study("digits").Watch(ctx, 0) {
		last = err
	}
	if !errors.Is(last, context.DeadlineExceeded) {
		t.Fatalf("got %v", last)
	}
}

func TestAMessageWithoutEventsMovesAWatchPastDeletedOnes(t *testing.T) {
	net, fake := newNetwork(), digits()
	begun := 0
	fake.watch = func(_ *pb.WatchStudyRequest, stream watchStream) error {
		if begun++; begun > 1 {
			return failure(codes.NotFound, "STUDY_NOT_FOUND", "a second stream", "None is needed.")
		}
		_ = stream.Send(told(1, 2, 9))
		return stream.Send(told(10, 9, 9)) // events 3 to 9 were deleted by age
	}
	net.serve(t, "a:1", fake.register)
	for _, err := range net.client(t, "a:1").Study("digits").Watch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
	}
}
