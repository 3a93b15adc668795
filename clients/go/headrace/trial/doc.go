// Package trial is for the program of a study's trials, if it is written in Go.
//
//	func main() {
//		trial.Main(func(ctx context.Context, t *trial.Trial) error {
//			var model Model
//			if err := t.Track("model", trial.JSON(&model)); err != nil {
//				return err
//			}
//			for range t.Steps(ctx) {
//				loss := model.Train(t.Params)
//				if err := t.Report(ctx, map[string]float64{"loss": loss}); err != nil {
//					return err
//				}
//			}
//			return nil
//		})
//	}
//
// The study's template names the program: `trial: {command: ["./train-go"]}`.
//
// # The trial's life
//
// The worker daemon starts the program, once for each placement of the trial, and outlives it. The program attaches,
// gets its configuration and perhaps a checkpoint, trains, and reports. A report at a milestone saves first, and then
// waits until the scheduler has decided, however long that takes. CONTINUE moves the milestone. After PAUSE and STOP
// the loop over Steps ends, and the program should exit soon: after a grace period it is killed. A paused trial is
// started again later, perhaps on another machine, and continues after the step of its last checkpoint.
//
// # What happens when a message is lost
//
// A report carries a sequence, and a repeat has the same one, so it counts once. A daemon that does not answer for 15
// seconds is given up, and the program exits with status 75. That is a problem of the machine and is not charged to
// the configuration. An error that the program returns is charged: the trial is tried again as often as the study
// allows.
//
// # By hand
//
// A program that no worker started runs by itself, with the parameters and the budget of ByHand. Its reports go to
// the standard output.
package trial
