package headrace

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
)

// Reason says what is wrong, for programs. It is an error itself, so that errors.Is compares with it.
//
// The scheduler's reasons are those of headracev1.ErrorReason. A newer scheduler may have more.
type Reason string

// The reasons that a scheduler or a planner gives.
const (
	InvalidField        Reason = "INVALID_FIELD"
	StudyExists         Reason = "STUDY_EXISTS"
	StudyNotFound       Reason = "STUDY_NOT_FOUND"
	TrialNotFound       Reason = "TRIAL_NOT_FOUND"
	StudyEnded          Reason = "STUDY_ENDED"
	StudyNotEnded       Reason = "STUDY_NOT_ENDED"
	TrialEnded          Reason = "TRIAL_ENDED"
	BadPageToken        Reason = "BAD_PAGE_TOKEN"
	RequestIDReused     Reason = "REQUEST_ID_REUSED"
	LeaseStale          Reason = "LEASE_STALE"
	DatabaseUnavailable Reason = "DATABASE_UNAVAILABLE"
	Draining            Reason = "DRAINING"
	NotAskTell          Reason = "NOT_ASK_TELL"
	Internal            Reason = "INTERNAL"
	StudyDefect         Reason = "STUDY_DEFECT"
	TooLarge            Reason = "TOO_LARGE"
	WorkerNameTaken     Reason = "WORKER_NAME_TAKEN"
	Unauthenticated     Reason = "UNAUTHENTICATED"
	PermissionDenied    Reason = "PERMISSION_DENIED"
	TokenNotFound       Reason = "TOKEN_NOT_FOUND"
	QuotaExceeded       Reason = "QUOTA_EXCEEDED"
	ProjectNotFound     Reason = "PROJECT_NOT_FOUND"
	ProjectExists       Reason = "PROJECT_EXISTS"
	JoinRefused         Reason = "JOIN_REFUSED"
	JoinTokenNotFound   Reason = "JOIN_TOKEN_NOT_FOUND"
	WorkerIdentity      Reason = "WORKER_IDENTITY"
	WorkerRevoked       Reason = "WORKER_REVOKED"
	WorkerNotFound      Reason = "WORKER_NOT_FOUND"
	WorkerLeaves        Reason = "WORKER_LEAVES"
	VersionMismatch     Reason = "VERSION_MISMATCH"
	WorkerAway          Reason = "WORKER_AWAY"
	LogGone             Reason = "LOG_GONE"
	StoreAway           Reason = "STORE_AWAY"
	CodeNotFound        Reason = "CODE_NOT_FOUND"
	Busy                Reason = "BUSY"
)

// The reasons that the client gives by itself.
const (
	// Unreachable: no server answers at the address.
	Unreachable Reason = "UNREACHABLE"
	// Deadline: the server did not answer in time. The change may or may not have been made.
	Deadline Reason = "DEADLINE"
	// Cancelled: the caller's context ended, or the client was closed, before the answer came.
	Cancelled Reason = "CANCELLED"
	// Unsupported: the server is older or newer than this client, and one of them does not know a message of the other.
	Unsupported Reason = "UNSUPPORTED"
	// StudyOver: there are no more trials, because the study has ended.
	StudyOver Reason = "STUDY_OVER"
)

// Error makes a reason comparable with errors.Is.
func (r Reason) Error() string { return string(r) }

// Error is returned by every call that fails: what happened, and what to do about it.
type Error struct {
	Reason Reason
	// Message says what happened, for people.
	Message string
	// Remedy says what to do about it.
	Remedy string
	// Violations name the invalid fields. There are some if the reason is InvalidField.
	Violations []Violation
	// Code is the gRPC status.
	Code codes.Code

	cause error
}

// Violation is one invalid field.
type Violation struct {
	// Field is its path, such as space.lr.low.
	Field string
	// Message says what is wrong with it.
	Message string
	// Value is the field's value; empty if it has none.
	Value string
	// Remedy says what to do.
	Remedy string
}

// Error is the message with the remedy, or one line per violation.
func (e *Error) Error() string {
	if len(e.Violations) > 0 {
		lines := make([]string, len(e.Violations))
		for i, violation := range e.Violations {
			lines[i] = violation.String()
		}
		return strings.Join(lines, "\n")
	}
	return strings.TrimSpace(sentence(e.Message) + " " + e.Remedy)
}

// Is compares with a Reason.
func (e *Error) Is(target error) bool {
	reason, ok := target.(Reason)
	return ok && reason == e.Reason
}

// Unwrap is the context's error, if a context ended the call.
func (e *Error) Unwrap() error { return e.cause }

// Retryable says whether the same call may succeed later without any change.
func (e *Error) Retryable() bool {
	return e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded
}

// String is the violation in one line.
func (v Violation) String() string {
	text := v.Message
	if v.Field != "" {
		text = v.Field + ": " + text
	}
	if v.Value != "" {
		text += fmt.Sprintf(" (got %s)", v.Value)
	}
	return strings.TrimSpace(sentence(text) + " " + v.Remedy)
}

// sentence adds a full stop to a text that has none.
func sentence(text string) string {
	if text == "" || strings.ContainsAny(text[len(text)-1:], ".!?\n") {
		return text
	}
	return text + "."
}

// invalid is the error for one field that the client itself rejects.
func invalid(field, value, message, remedy string) *Error {
	violation := Violation{Field: field, Value: value, Message: message, Remedy: remedy}
	return &Error{
		Reason: InvalidField, Code: codes.InvalidArgument,
		Message: violation.String(), Violations: []Violation{violation},
	}
}
