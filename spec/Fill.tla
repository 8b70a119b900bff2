-------------------------------- MODULE Fill --------------------------------
(* A fill: what was loaded after a miss, stored under the counts that the     *)
(* miss has read (docs/quorum.md, "Fills"). The highest mutation of each mix  *)
(* is the fill: the higher its version, the more it can replace.              *)

EXTENDS Quorum

VARIABLES
  ticket,   \* of each replica: "none", or whether its count of the mutations
            \* that it has taken is the "same" as the miss has read, or "other"
  missed,   \* the miss has ended
  early     \* mutations that began before it ended

counts == <<ticket, missed, early>>

TheFill == Top(Mutation)
Others == Mutation \ {TheFill}
Read(p) ==
  /\ ~missed /\ IsUp(p)
  /\ ticket' = [ticket EXCEPT ![p] = "same"]
  /\ UNCHANGED <<vars, missed, early>>

Miss ==
  /\ ~missed
  /\ Cardinality({p \in Process : ticket[p] # "none"}) >= 2
  /\ missed' = TRUE
  /\ UNCHANGED <<vars, ticket, early>>

Changed(p) == [ticket EXCEPT ![p] = IF @ = "same" THEN "other" ELSE @]
Counted(p) == ticket' = IF have'[p] # have[p] THEN Changed(p) ELSE ticket

Other(m, p) ==
  /\ Deliver(m, p) \/ Receive(m, p) \/ Reject(m, p) \/ Repair(m, p)
  /\ Counted(p)
  /\ early' = IF missed THEN early ELSE early \cup {m}
  /\ UNCHANGED missed

Allows(p) ==
  \/ ticket[p] = "same"
  \/ Without = "fill: counts"
  \/ Without = "fill: unknown counts" /\ ticket[p] = "none"

(* It counts, too. Where it is refused it gives way, and takes back what it   *)
(* left; once two have taken it, it goes to the third: rule 11.               *)
Store(p) ==
  /\ missed
  /\ \/ Allows(p) /\ Receive(TheFill, p)
     \/ Reject(TheFill, p)
     \/ Repair(TheFill, p)
  /\ Counted(p)
  /\ UNCHANGED <<missed, early>>

Remove(p) ==
  /\ Withdraw(p)
  /\ Counted(p)
  /\ UNCHANGED <<missed, early>>

(* The counts of who has lost its memory are never those of before. If they   *)
(* began with nothing again, they could be.                                   *)
Forget(p) ==
  /\ Crash(p)
  /\ ticket' = IF Without = "fill: restarts" /\ ticket[p] # "none"
               THEN [ticket EXCEPT ![p] = "same"] ELSE Changed(p)
  /\ UNCHANGED <<missed, early>>

Uncounted == Get \/ Recover \/ \E p \in Process : Drop(p) \/ OthersRaise(p)

FillInit == CellInit
  /\ ticket = [p \in Process |-> "none"]
  /\ missed = FALSE
  /\ early = {}
FillNext ==
  \/ Miss \/ \E p \in Process : Read(p) \/ Store(p) \/ Remove(p) \/ Forget(p)
  \/ \E m \in Others, p \in Process : Other(m, p)
  \/ Uncounted /\ UNCHANGED counts
FillSpec == FillInit /\ [][FillNext]_<<vars, counts>>

-----------------------------------------------------------------------------

(* A fill never replaces what began after its miss and was acknowledged.      *)
GivesWay ==
  TheFill \in hits \cup acked =>
    \A m \in Others : m \in acked => m \in early

=============================================================================
