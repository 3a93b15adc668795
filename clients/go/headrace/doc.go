// Package headrace is the Go client of Headrace, which tunes hyperparameters.
//
// A [Client] talks to a scheduler. It has three kinds of work:
//
//   - Studies: [Client.CreateStudy], [Client.Study] and the methods of a [Study] and a [Trial]. They take and return the
//     messages of the contract, package headracev1.
//   - Ask and tell: [Study.AskAll] hands out trials to a loop of the caller's own, an [Asked] each.
//   - Watching: [Study.Watch] follows a study, through any number of broken connections, without losing an event.
//
// A [Planner] asks a planner how to split a training job. Package trial is the other side: a trial's own program.
//
// # What a call does when something breaks
//
// The scheduler's database is authoritative. A call that changes something carries a request id. The client draws it
// once and repeats exactly the same request, so a change whose answer was lost is made only once. A call is repeated
// if no scheduler answers or if an attempt takes too long. It ends with an error after the client's timeout, or when
// its context ends. If there are several addresses, the next one is tried at once.
//
// Local time is trusted only for waiting: for timeouts, and for the pauses between attempts.
//
// # Errors
//
// Every error of a call is an [*Error]. Its [Reason] says what is wrong, for programs: errors.Is(err,
// headrace.StudyNotFound). Its message and its remedy are for people. If fields of a request are invalid, its
// violations name each of them. An error of a context that ended also matches context.Canceled or
// context.DeadlineExceeded.
//
// Nothing in this package is global, and everything may be used by several goroutines at once.
package headrace
