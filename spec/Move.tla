-------------------------------- MODULE Move --------------------------------
(* Replicas that move to other processes: one of them when a backend's number *)
(* is handed over, all of them when a cell is resized.                        *)
(*                                                                            *)
(*   copy in rounds, while the old one serves                                 *)
(*   freeze: the old one takes no mutation, and its epoch stays as it is      *)
(*   last copy: what has changed since, the floor, the epoch                  *)
(*   swap of the configuration                                                *)
(*   the old one's lease ends; only then its successor begins                 *)
(*                                                                            *)
(* Who breaks off swaps the configuration first: the other swap then fails.   *)

EXTENDS Mixes, TLC

CONSTANTS A, B, C,      \* the three replicas
          X, Y, Z,      \* their successors, as far as they move
          Successors,   \* those that there are
          Rounds,       \* whether there are copies before the last one
          CoarseMove    \* one step: a freeze and the last copy; a lease's end and
                        \* the successor's begin

VARIABLES
  config,   \* "old", "new", or "kept": the old ones, after breaking off
  image,    \* of each successor: "none", "round", "last"
  changed   \* of each process that moves: mutated since it was copied

moves == <<config, image, changed>>
all == <<vars, moves>>

Old(x) == CASE x = X -> A [] x = Y -> B [] x = Z -> C [] OTHER -> x
Moved == [p \in Process |-> Old(p)]
Moving == {Old(x) : x \in Successors}
IsResize == Cardinality(Successors) > 1

(* Replicas are alike as far as they all move, or none of those two does.     *)
New(p) == CASE p = A -> X [] p = B -> Y [] p = C -> Z
Alike ==
  {[q \in Process |-> IF q \in Successors THEN New(f[Old(q)]) ELSE f[q]] :
    f \in {g \in Permutations({A, B, C}) : \A p \in Moving : g[p] \in Moving}}

-----------------------------------------------------------------------------

(* One step of the copy. Bounds are not copied one by one: as in rule 9.      *)
Copies(x, from) ==
  /\ have' = [have EXCEPT ![x] = Max(have[from], 0)]
  /\ floor' = [floor EXCEPT ![x] =
       IF Without = "floor" THEN 0 ELSE Max(floor[x], BoundMax(from))]
Round(x) ==
  /\ Rounds
  /\ config = "old" /\ image[x] = "none"
  /\ role[Old(x)] = "up"
  /\ Copies(x, Old(x))
  /\ image' = [image EXCEPT ![x] = "round"]
  /\ changed' = [changed EXCEPT ![Old(x)] = FALSE]
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets, config>>

Freeze(p) ==
  /\ ~CoarseMove
  /\ p \in Moving /\ IsUp(p)
  /\ config = "old"
  /\ role' = [role EXCEPT ![p] = "frozen"]
  /\ UNCHANGED <<clients, stores, epoch, rec, crashes, gets, moves>>

MayBeCopied(p) ==
  \/ role[p] = "frozen"
  \/ CoarseMove /\ IsUp(p)
  \/ Without = "freeze" /\ IsUp(p)
  \/ Without = "whole" /\ role[p] = "recovering"

(* Place by place. *)
LastCopy(x) == \E p \in Moving :
  /\ p = Old(x) \/ Without = "places"
  /\ config = "old" /\ image[x] # "last"
  /\ MayBeCopied(p) /\ MayBeCopied(Old(x))
  /\ IF image[x] = "round" /\ ~changed[p]
     THEN /\ floor' = [floor EXCEPT ![x] =
               IF Without = "floor" THEN 0 ELSE Max(floor[x], BoundMax(p))]
          /\ UNCHANGED have
     ELSE Copies(x, p)
  /\ epoch' = [epoch EXCEPT ![x] = epoch[p]]
  /\ image' = [image EXCEPT ![x] = "last"]
  /\ role' = IF CoarseMove /\ Without # "freeze" THEN [role EXCEPT ![Old(x)] = "frozen"] ELSE role
  /\ rec' = IF CoarseMove /\ rec.of = Old(x) THEN NoRecovery ELSE rec
  /\ UNCHANGED <<clients, crashes, gets, config, changed>>

AreOfOneEpoch == \A x, y \in Successors : epoch[x] = epoch[y]

Swap ==
  /\ config = "old"
  /\ \A x \in Successors : image[x] = "last"
  /\ AreOfOneEpoch \/ Without = "epochs"
  /\ config' = "new"
  (* In one epoch. *)
  /\ epoch' = [p \in Process |->
       IF p \in Successors THEN Top({epoch[x] : x \in Successors}) ELSE epoch[p]]
  /\ UNCHANGED <<clients, stores, role, rec, crashes, gets, image, changed>>

(* By itself, once it knows of the new configuration, or in time. *)
EndLease(p) ==
  /\ ~CoarseMove
  /\ p \in Moving /\ config = "new"
  /\ role[p] # "gone"
  /\ role' = [role EXCEPT ![p] = "gone"]
  /\ rec' = IF rec.of = p THEN NoRecovery ELSE rec
  /\ have' = [have EXCEPT ![p] = 0]
  /\ floor' = [floor EXCEPT ![p] = 0]
  /\ UNCHANGED <<clients, epoch, crashes, gets, moves>>

Begin(x) ==
  /\ config = "new" /\ role[x] = "new"
  /\ IF CoarseMove /\ Without # "lease"
     THEN /\ role' = [role EXCEPT ![x] = "up", ![Old(x)] = "gone"]
          /\ rec' = IF rec.of = Old(x) THEN NoRecovery ELSE rec
     ELSE /\ role[Old(x)] = "gone" \/ Without = "lease"
          /\ role' = [role EXCEPT ![x] = "up"]
          /\ UNCHANGED rec
  /\ UNCHANGED <<clients, stores, epoch, crashes, gets, moves>>

(* Any of the old ones. What was copied is thrown away. *)
Keep ==
  /\ have' = [p \in Process |-> IF p \in Successors THEN 0 ELSE have[p]]
  /\ floor' = [p \in Process |-> IF p \in Successors THEN 0 ELSE floor[p]]
  /\ config' = "kept"
  /\ image' = [x \in Successors |-> "none"]
  /\ changed' = [p \in Moving |-> FALSE]
BreakOff ==
  /\ ~CoarseMove
  /\ config = "old"
  /\ \E p \in Moving : role[p] = "frozen"
  /\ Keep
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets>>
Thaw(p) ==
  /\ ~CoarseMove \/ Without = "broken off"
  /\ role[p] = "frozen"
  /\ config = "kept" \/ (Without = "broken off" /\ config = "old")
  /\ role' = [role EXCEPT ![p] = "up"]
  /\ UNCHANGED <<clients, stores, epoch, rec, crashes, gets, moves>>

-----------------------------------------------------------------------------
(* Crashes. What a process had shared is read until its lease ends. Who comes *)
(* back takes the number again by a swap of the configuration.                *)

IsAway(p) == role[p] \in {"dead", "recovering"}
Die(p) ==
  /\ p \in Moving
  /\ role[p] \in {"up", "frozen"}
  /\ crashes > 0 /\ \A q \in Process : ~IsAway(q)
  /\ role' = [role EXCEPT ![p] = "dead"]
  /\ UNCHANGED <<clients, stores, epoch, rec, crashes, gets, moves>>
(* What it had shared was read until now. *)
Restart(p) ==
  /\ role[p] = "dead"
  /\ Lose(p)
  /\ IF config = "old"
     THEN IF IsResize THEN UNCHANGED moves
          ELSE /\ config' = "kept"
               /\ UNCHANGED <<image, changed>>
     ELSE config = "kept" /\ UNCHANGED moves
(* Of those that do not move, and of successors. *)
CrashOther(p) ==
  /\ p \notin Moving
  /\ p \in Successors => config = "new"
  /\ \A q \in Process \ {p} : ~IsAway(q)
  /\ IF role[p] = "new" THEN Lose(p) ELSE Crash(p)
  /\ UNCHANGED moves

-----------------------------------------------------------------------------

(* A mutation at a replica that is being copied is kept track of. An eviction *)
(* is not: the copy then has what the old one had.                            *)
Track == changed' = [p \in Moving |->
  changed[p] \/ (have'[p] # have[p] /\ image[New(p)] = "round" /\ role[p] # "frozen")]
Mutated == (Mutate \/ \E p \in Process : Withdraw(p)) /\ Track /\ UNCHANGED <<config, image>>
Dropped == (\E p \in Process : Drop(p)) /\ UNCHANGED moves
Others == ((\E p \in Process : OthersRaise(p)) \/ Get \/ Recover) /\ UNCHANGED moves

MoveInit == CellInit /\ config = "old"
  /\ image = [x \in Successors |-> "none"]
  /\ changed = [p \in Moving |-> FALSE]
MoveNext ==
  \/ Mutated \/ Dropped \/ Others
  \/ Swap \/ BreakOff
  \/ \E x \in Successors : Round(x) \/ LastCopy(x) \/ Begin(x)
  \/ \E p \in Moving : Freeze(p) \/ EndLease(p) \/ Thaw(p) \/ Die(p) \/ Restart(p)
  \/ \E p \in Process : CrashOther(p)
MoveSpec == MoveInit /\ [][MoveNext]_all

=============================================================================
